package main

import (
	"os"
	"reflect"
	"testing"
)

// table is a hold table with a slip: it inserts without another look at the end that pulls see.
type table struct {
	oracle *Oracle
	t      *testing.T
}

// step is what a hold table's own code calls where it has done a step of the law.
func (h *table) step(name string, actors ...any) {
	h.t.Helper()
	refused, err := h.oracle.Did(name, actors...)
	if err != nil || len(refused) > 0 {
		h.t.Fatalf("%s%v is not legal: %v is false, %v; it may %v", name, actors, refused, err, h.oracle.May())
	}
}

func lawOf(t *testing.T) *Law {
	path := os.Getenv("LAW")
	if path == "" {
		t.Fatal("LAW names no file of rocketmq-4.9")
	}
	law, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return law
}

func TestAMessageBetweenReadAndInsertIsALostWakeup(t *testing.T) {
	held := &table{lawOf(t).Oracle(), t}
	held.step("next_pull", 0)
	held.step("pull_read", 0)
	held.step("append")
	held.step("make_visible")
	held.step("notify_start")
	held.step("notify_end")
	held.step("hold", 0)
	if broken := held.oracle.Broken(); !reflect.DeepEqual(broken, []string{"no_lost_wakeup", "woken_within"}) {
		t.Errorf("broken: %v", broken)
	}
}

func TestAHoldOfWhatHasNotMissedIsRefused(t *testing.T) {
	oracle := lawOf(t).Oracle()
	refused, err := oracle.Did("hold", 0)
	if err != nil || !reflect.DeepEqual(refused, []string{"phase_0 = PHASE_MISSED"}) {
		t.Errorf("refused by %v, %v", refused, err)
	}
	if may := oracle.May(); !reflect.DeepEqual(may, []string{"append", "next_pull(0)", "next_pull(1)", "tick", "stop"}) {
		t.Errorf("may: %v", may)
	}
	if _, err := oracle.Did("hold", 9); err == nil {
		t.Error("hold(9) is there")
	}
}
