package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// main explores a law (`law FILE`), or follows steps through it (`law FILE LABEL...`), and prints JSON lines.
func main() {
	out := json.NewEncoder(os.Stdout)
	law, err := Load(os.Args[1])
	if err == nil && len(os.Args) > 2 {
		err = follow(out, law.Oracle(), os.Args[2:])
	} else if err == nil {
		var found Found
		if found, err = law.Explore(); err == nil {
			err = out.Encode(found)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func follow(out *json.Encoder, oracle *Oracle, labels []string) error {
	for _, label := range labels {
		refused, err := oracle.Did(label)
		if err != nil {
			return err
		}
		if err = out.Encode(map[string]any{"step": label, "false": refused, "may": oracle.May(), "broken": oracle.Broken()}); err != nil {
			return err
		}
	}
	return nil
}
