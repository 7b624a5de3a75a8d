// A hold table: pulls wait here until a message comes or their time is up. Speaks the protocol of `longpoll dojo`.
package main

import (
	"encoding/json"
	"os"
)

type message struct {
	Type       string `json:"type"`
	ID         int    `json:"id"`
	NowMs      int64  `json:"now_ms"`
	WallMs     int64  `json:"wall_ms"`
	Connection int    `json:"connection"`
	Queue      string `json:"queue"`
	Offset     int    `json:"offset"`
	WaitMs     int64  `json:"wait_ms"`
	Message    string `json:"message"`
	deadlineMs int64
}

type table struct {
	nowMs  int64
	logs   map[string][]string // queue -> its messages
	held   []message           // the pulls that wait
	closed map[int]bool        // connections
	paused map[int]func()      // id -> what is done when it goes on from its step point
	step   string              // where the message that is at work has stopped
}

var out = json.NewEncoder(os.Stdout)

func newTable() *table {
	return &table{logs: map[string][]string{}, closed: map[int]bool{}, paused: map[int]func(){}}
}

func (t *table) stop(step string, id int, next func()) {
	t.step, t.paused[id] = step, next
}

func (t *table) pull(pull message) {
	pull.deadlineMs = t.nowMs + pull.WaitMs
	if t.look(pull) {
		return
	}
	t.stop("between_check_and_hold", pull.ID, func() {
		if t.closed[pull.Connection] {
			return
		}
		t.held = append(t.held, pull)
		t.stop("between_hold_and_recheck", pull.ID, func() {
			t.wake(pull.Queue) // a message that came before the hold woke no pull
		})
	})
}

func (t *table) arrive(m message) {
	t.logs[m.Queue] = append(t.logs[m.Queue], m.Message)
	t.stop("between_append_and_wake", m.ID, func() { t.wake(m.Queue) })
}

func (t *table) close(connection int) {
	t.closed[connection] = true
	t.keep(func(pull message) bool { return pull.Connection != connection })
}

func (t *table) wake(queue string) {
	t.keep(func(pull message) bool { return pull.Queue != queue || !t.look(pull) })
}

func (t *table) keep(wanted func(message) bool) {
	left := []message{}
	for _, pull := range t.held {
		if wanted(pull) {
			left = append(left, pull)
		}
	}
	t.held = left
}

// look answers a pull, if there is something for it or its time is up.
func (t *table) look(pull message) bool {
	messages := []string{}
	if log := t.logs[pull.Queue]; pull.Offset < len(log) {
		messages = log[pull.Offset:]
	}
	if len(messages) == 0 && t.nowMs < pull.deadlineMs {
		return false
	}
	out.Encode(map[string]any{"answer": pull.ID, "messages": messages, "offset_next": pull.Offset + len(messages)})
	return true
}

func main() {
	t := newTable()
	for in := json.NewDecoder(os.Stdin); ; {
		m := message{}
		if in.Decode(&m) != nil {
			return
		}
		if m.Type == "reset" {
			t = newTable()
		}
		t.nowMs, t.step = m.NowMs, ""
		switch m.Type {
		case "pull":
			t.pull(m)
		case "arrive":
			t.arrive(m)
		case "tick":
			t.keep(func(pull message) bool { return !t.look(pull) })
		case "close":
			t.close(m.Connection)
		case "go":
			t.paused[m.ID]()
		}
		if t.step != "" {
			out.Encode(map[string]any{"at": t.step, "id": m.ID})
		} else {
			out.Encode(map[string]any{"done": m.ID})
		}
	}
}
