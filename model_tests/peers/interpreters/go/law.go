// Package main runs the law of broker long polling from its JANI file: it explores the law, and follows a program's
// steps for a unit test. What is in the file is told in docs/export.md. Leaves out every part of JANI that is not there.
package main

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"time"
)

// Version is that of the files which this program reads.
const Version = "1"

type variable struct {
	name         string
	lower, upper int32 // both ends belong to it
	bounded      bool
	first        int32
	word, shift  int // where it stands in a packed state
	mask         uint64
}

type edge struct {
	label   string
	guard   int32
	parts   []any      // of the guard, as they stand in the file
	effects [][2]int32 // each a variable's place, and the node of its new value
}

type property struct {
	name     string
	decisive int32 // what a state that decides the property satisfies
	wanted   bool  // whether such a state must be reached, or must not
}

// Law is the file, read. Equal expressions are one node, so that a guard which many others ask for is evaluated once.
type Law struct {
	variables  []variable
	places     map[string]int32
	constants  map[string]int32
	nodes      []node
	known      map[string]int32
	edges      []edge
	labels     map[string]int
	properties []property
}

type node struct {
	op     byte
	shared bool  // used more than once, so its value is remembered
	value  int32 // of a constant; of a variable, or a comparison of one with a constant, its place
	with   int32 // that constant
	kids   [3]int32
}

var codes = map[string]byte{"∧": 'a', "∨": 'o', "¬": 'n', "ite": 'i', "=": 'e', "≠": 'u', "<": 'l', "≤": 'L', "+": '+', "-": '-'}

const (
	isConstant = 'c'
	isVariable = 'v'
	isEqual    = 'E' // a variable to a constant, which is asked most
	isUnequal  = 'U'
)

type object = map[string]any

// Load reads a file that `longpoll export --to jani` wrote.
func Load(path string) (law *Law, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found object
	if err = json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	defer caught(&err, path+" is no law that this program reads") // what is not there fails where it is looked for
	if version := found["metadata"].(object)["version"]; version != Version {
		return nil, fmt.Errorf("%s has version %v, and this program reads %s", path, version, Version)
	}
	return read(found), nil
}

// caught makes an error of a panic.
func caught(err *error, said string) {
	if trouble := recover(); trouble != nil {
		*err = fmt.Errorf("%s: %v", said, trouble)
	}
}

func read(found object) *Law {
	law := &Law{places: map[string]int32{}, constants: map[string]int32{}, known: map[string]int32{}, labels: map[string]int{}}
	for _, each := range objects(found["constants"]) {
		law.constants[each["name"].(string)] = int32(each["value"].(float64))
	}
	for _, each := range objects(found["variables"]) {
		law.declare(each["name"].(string), each["type"], each["initial-value"])
	}
	for _, each := range objects(objects(found["automata"])[0]["edges"]) {
		guard := each["guard"].(object)["exp"]
		made := edge{label: each["action"].(string), guard: law.add(guard), parts: joined(guard, "∧")}
		for _, one := range objects(objects(each["destinations"])[0]["assignments"]) {
			made.effects = append(made.effects, [2]int32{law.place(one["ref"].(string)), law.add(one["value"])})
		}
		law.labels[made.label] = len(law.edges)
		law.edges = append(law.edges, made)
	}
	for _, each := range objects(found["properties"]) {
		law.properties = append(law.properties, law.property(each["name"].(string), each["expression"].(object)["values"].(object)))
	}
	return law
}

func objects(list any) (found []object) {
	for _, each := range list.([]any) {
		found = append(found, each.(object))
	}
	return found
}

func (law *Law) declare(name string, kind, first any) {
	made := variable{name: name, upper: 1, bounded: true}
	if ends, is := kind.(object); is {
		upper, has := ends["upper-bound"].(float64)
		made.lower, made.upper, made.bounded = int32(ends["lower-bound"].(float64)), int32(upper), has
	}
	made.first = law.nodes[law.add(first)].value
	law.places[name] = int32(len(law.variables))
	law.variables = append(law.variables, made)
}

// property reads "the greatest probability of reaching a state is 0", or its negation.
func (law *Law) property(name string, asked object) property {
	wanted := asked["op"] == "¬"
	if wanted {
		asked = asked["exp"].(object)
	}
	reached := asked["left"].(object)
	if asked["op"] != "≤" || asked["right"] != 0.0 || reached["op"] != "Pmax" {
		panic("property " + name + " asks something else")
	}
	return property{name, law.add(reached["exp"].(object)["exp"]), wanted}
}

func (law *Law) place(name string) int32 {
	place, is := law.places[name]
	if !is {
		panic("no variable " + name)
	}
	return place
}

// add makes an expression's node, or finds it if there is one that says the same.
func (law *Law) add(expression any) int32 {
	made := law.node(expression)
	key := fmt.Sprint(made.op, made.value, made.with, made.kids)
	place, is := law.known[key]
	if is {
		law.nodes[place].shared = made.kids != [3]int32{}
		return place
	}
	law.known[key] = int32(len(law.nodes))
	law.nodes = append(law.nodes, made)
	return law.known[key]
}

func (law *Law) node(expression any) node {
	switch found := expression.(type) {
	case bool:
		return node{op: isConstant, value: truth(found)}
	case float64:
		return node{op: isConstant, value: int32(found)}
	case string:
		if value, is := law.constants[found]; is {
			return node{op: isConstant, value: value}
		}
		return node{op: isVariable, value: law.place(found)}
	}
	found := expression.(object)
	op := found["op"].(string)
	made := node{op: codes[op]}
	switch op {
	case "¬":
		made.kids = [3]int32{law.add(found["exp"])}
	case "ite":
		made.kids = [3]int32{law.add(found["if"]), law.add(found["then"]), law.add(found["else"])}
	default:
		made.kids = [3]int32{law.add(found["left"]), law.add(found["right"])}
	}
	if made.op == 0 {
		panic("unknown operator " + op)
	}
	if op == "=" || op == "≠" {
		left, right := law.nodes[made.kids[0]], law.nodes[made.kids[1]]
		if left.op == isVariable && right.op == isConstant {
			return node{op: made.op - 'a' + 'A', value: left.value, with: right.value}
		}
	}
	return made
}

// joined is what an operator of two arguments joins, however it is nested.
func joined(expression any, op string) []any {
	if found, is := expression.(object); is && found["op"] == op {
		return append(joined(found["left"], op), joined(found["right"], op)...)
	}
	return []any{expression}
}

func truth(value bool) int32 {
	if value {
		return 1
	}
	return 0
}

// world evaluates nodes in one state; what is shared is remembered until the state is another.
type world struct {
	law    *Law
	state  []int32
	now    uint32
	stamps []uint32
	values []int32
}

func (law *Law) world() *world {
	made := &world{law: law, state: make([]int32, len(law.variables)), now: 1}
	made.stamps, made.values = make([]uint32, len(law.nodes)), make([]int32, len(law.nodes))
	for place, each := range law.variables {
		made.state[place] = each.first
	}
	return made
}

func (w *world) value(place int32) int32 {
	n := &w.law.nodes[place]
	switch n.op {
	case isConstant:
		return n.value
	case isVariable:
		return w.state[n.value]
	case isEqual:
		return truth(w.state[n.value] == n.with)
	case isUnequal:
		return truth(w.state[n.value] != n.with)
	}
	if !n.shared {
		return w.compute(n)
	}
	if w.stamps[place] != w.now {
		w.values[place], w.stamps[place] = w.compute(n), w.now
	}
	return w.values[place]
}

func (w *world) compute(n *node) int32 {
	switch n.op {
	case 'a':
		if w.value(n.kids[0]) == 0 {
			return 0
		}
		return w.value(n.kids[1])
	case 'o':
		if w.value(n.kids[0]) != 0 {
			return 1
		}
		return w.value(n.kids[1])
	case 'n':
		return 1 - w.value(n.kids[0])
	case 'i':
		if w.value(n.kids[0]) != 0 {
			return w.value(n.kids[1])
		}
		return w.value(n.kids[2])
	}
	left, right := w.value(n.kids[0]), w.value(n.kids[1])
	switch n.op {
	case 'e':
		return truth(left == right)
	case 'u':
		return truth(left != right)
	case 'l':
		return truth(left < right)
	case 'L':
		return truth(left <= right)
	case '+':
		return left + right
	}
	return left - right
}

// after writes the state that an edge leads to; it raises where a variable leaves its range.
func (w *world) after(taken *edge, into []int32) {
	copy(into, w.state)
	for _, each := range taken.effects {
		value, kept := w.value(each[1]), &w.law.variables[each[0]]
		if value < kept.lower || kept.bounded && value > kept.upper {
			panic(fmt.Sprintf("%s makes %s %d, which is not in its range", taken.label, kept.name, value))
		}
		into[each[0]] = value
	}
}

// Found is what an exploration counts, and for each property whether it is as it must be.
type Found struct {
	States      int             `json:"states"`
	Transitions int             `json:"transitions"`
	Depth       int             `json:"depth"`
	Seconds     float64         `json:"seconds"`
	Verdicts    map[string]bool `json:"verdicts"`
}

type key [2]uint64

// Explore finds every state, breadth first. A state is packed in 128 bits, so that equal keys are equal states.
func (law *Law) Explore() (found Found, err error) {
	defer caught(&err, "the law cannot be explored")
	law.lay()
	w, next := law.world(), make([]int32, len(law.variables))
	seen := map[key]struct{}{law.pack(w.state): {}}
	began := time.Now()
	level, reached := []key{law.pack(w.state)}, make([]bool, len(law.properties))
	for ; len(level) > 0; found.Depth++ {
		var following []key
		for _, packed := range level {
			law.unpack(packed, w.state)
			w.now++
			for index := range law.properties {
				reached[index] = reached[index] || w.value(law.properties[index].decisive) != 0
			}
			for index := range law.edges {
				if w.value(law.edges[index].guard) == 0 {
					continue
				}
				found.Transitions++
				w.after(&law.edges[index], next)
				after := law.pack(next)
				if _, is := seen[after]; !is {
					seen[after] = struct{}{}
					following = append(following, after)
				}
			}
		}
		level = following
	}
	found.Seconds, found.Depth = time.Since(began).Seconds(), found.Depth-1
	found.States, found.Verdicts = len(seen), map[string]bool{}
	for index, each := range law.properties {
		found.Verdicts[each.name] = reached[index] == each.wanted
	}
	return found, nil
}

// lay gives each variable its bits; none lies across two words.
func (law *Law) lay() {
	used := 0
	for place := range law.variables {
		each := &law.variables[place]
		if !each.bounded {
			panic(each.name + " has no end: such a law is only followed")
		}
		width := bits.Len32(uint32(each.upper - each.lower))
		if used/64 != (used+width-1)/64 {
			used = 64
		}
		each.word, each.shift, each.mask = used/64, used%64, 1<<width-1
		used += width
	}
	if used > 128 {
		panic("a state needs more than 128 bits")
	}
}

func (law *Law) pack(state []int32) (packed key) {
	for place := range state {
		each := &law.variables[place]
		packed[each.word] |= uint64(state[place]-each.lower) << each.shift
	}
	return packed
}

func (law *Law) unpack(packed key, state []int32) {
	for place := range state {
		each := &law.variables[place]
		state[place] = int32(packed[each.word]>>each.shift&each.mask) + each.lower
	}
}

// Oracle follows one run, step by step, from the law's first state.
type Oracle struct{ world *world }

// Oracle is for one unit test of one hold table.
func (law *Law) Oracle() *Oracle { return &Oracle{law.world()} }

// Did takes a step of the law, such as Did("hold", 0). It gives the parts of the step's guard that are false: none if
// the step is legal; else the run stays where it is.
func (o *Oracle) Did(name string, actors ...any) ([]string, error) {
	label := name
	if len(actors) > 0 {
		label = fmt.Sprintf("%s(%s)", name, strings.Join(strings.Fields(strings.Trim(fmt.Sprintln(actors...), "[]")), ","))
	}
	index, is := o.world.law.labels[label]
	if !is {
		return nil, fmt.Errorf("the law has no action %s", label)
	}
	taken := &o.world.law.edges[index]
	if o.world.value(taken.guard) == 0 {
		return o.why(taken), nil
	}
	next := make([]int32, len(o.world.state))
	o.world.after(taken, next)
	o.world.state, o.world.now = next, o.world.now+1
	return []string{}, nil
}

func (o *Oracle) why(refused *edge) []string {
	parts := []string{}
	for _, part := range refused.parts {
		if o.world.value(o.world.law.add(part)) == 0 {
			parts = append(parts, text(part))
		}
	}
	return parts
}

// May tells what can come next.
func (o *Oracle) May() []string {
	labels := []string{}
	for _, each := range o.world.law.edges {
		if o.world.value(each.guard) != 0 {
			labels = append(labels, each.label)
		}
	}
	return labels
}

// Broken tells the properties that the state decides: of what must never be, that it is.
func (o *Oracle) Broken() []string {
	names := []string{}
	for _, each := range o.world.law.properties {
		if !each.wanted && o.world.value(each.decisive) != 0 {
			names = append(names, each.name)
		}
	}
	return names
}

// text writes an expression with the file's operators.
func text(expression any) string {
	written := nested(expression)
	if strings.HasPrefix(written, "(") {
		return written[1 : len(written)-1]
	}
	return written
}

func nested(expression any) string {
	found, is := expression.(object)
	if !is {
		return fmt.Sprint(expression)
	}
	switch op := found["op"].(string); op {
	case "∧", "∨":
		var parts []string
		for _, part := range joined(expression, op) {
			parts = append(parts, nested(part))
		}
		return "(" + strings.Join(parts, " "+op+" ") + ")"
	case "¬":
		return "¬" + nested(found["exp"])
	case "ite":
		return "(if " + nested(found["if"]) + " then " + nested(found["then"]) + " else " + nested(found["else"]) + ")"
	default:
		return "(" + nested(found["left"]) + " " + op + " " + nested(found["right"]) + ")"
	}
}
