// Plays conformance vectors to a broker, with nothing but the standard library.
//
//	play FILE BROKER NAME_SERVER BROKER_NAME CLUSTER HAS [ONLY]
//
// HAS is what the broker has, ONLY the ids that are played, each with commas between them. The page beside the vectors
// tells what steps and patterns mean. A line for each vector; the exit code is 0 when none failed. What differs from a
// vector panics, and so do bytes that cannot be read.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"math/rand"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const beside, afterMs = 16, 250

type texts = map[string]string

var languages = strings.Split("JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST", " ")
var bareName = regexp.MustCompile(`([{,]\s*)(-?\d+)\s*:`)
var variable = regexp.MustCompile(`\$\{(\w+)([+-]\d+)?\}`)
var address = regexp.MustCompile(`^\d{1,3}(\.\d{1,3}){3}:\d+$`)
var ids = regexp.MustCompile(`^(([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})(,|$))+$`)

// attempt says what was panicked with; nothing when nothing was.
func attempt(do func()) (said string) {
	defer func() {
		if fault := recover(); fault != nil {
			said = fmt.Sprint(fault)
		}
	}()
	do()
	return
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// -- what a broker sends

type command struct {
	Code, Flag, Opaque int
	Language, Remark   string
	ExtFields          texts
	body               []byte
	at                 time.Time
}

type reader struct{ rest []byte }

func (r *reader) take(size int) []byte {
	taken := r.rest[:size]
	r.rest = r.rest[size:]
	return taken
}
func (r *reader) i8() int  { return int(r.take(1)[0]) }
func (r *reader) i16() int { return int(int16(binary.BigEndian.Uint16(r.take(2)))) }
func (r *reader) i32() int { return int(int32(binary.BigEndian.Uint32(r.take(4)))) }
func (r *reader) i64() int { return int(binary.BigEndian.Uint64(r.take(8))) }
func (r *reader) host(bit int) string {
	return fmt.Sprintf("%s:%d", net.IP(r.take(4+12*(bit&1))), r.i32())
}

func decode(frame []byte) *command {
	r, c := &reader{frame}, &command{at: time.Now(), ExtFields: texts{}}
	mark := r.i32()
	head := &reader{r.take(mark & 0xFFFFFF)}
	c.body = r.rest
	if mark>>24 == 0 {
		var given struct{ Code *int } // Into an int, Go reads null as no change.
		check(json.Unmarshal(head.rest, &given))
		if given.Code == nil {
			panic("a header without a code")
		}
		check(json.Unmarshal(head.rest, c))
		return c
	}
	c.Code, c.Language, _, c.Opaque, c.Flag = head.i16(), languages[head.i8()], head.i16(), head.i32(), head.i32()
	c.Remark = string(head.take(head.i32()))
	for fields := (&reader{head.take(head.i32())}); len(fields.rest) > 0; {
		name := string(fields.take(fields.i16()))
		c.ExtFields[name] = string(fields.take(fields.i32()))
	}
	return c
}

// put puts a value and what is in it by their places.
func put(found texts, place string, value any) {
	switch v := value.(type) {
	case texts:
		found[place+".#"] = fmt.Sprint(len(v))
		for name, text := range v {
			found[place+"."+name] = text
		}
	case map[string]any:
		found[place+".#"] = fmt.Sprint(len(v))
		for name, each := range v {
			put(found, place+"."+name, each)
		}
	case []any:
		slices.SortFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		found[place+".#"] = fmt.Sprint(len(v))
		for i, each := range v {
			put(found, fmt.Sprint(place, ".", i), each)
		}
	case float64:
		found[place] = strconv.FormatFloat(v, 'f', -1, 64)
	default:
		found[place] = fmt.Sprint(v)
	}
}

func putRecords(found texts, body []byte) {
	count := 0
	for r := (&reader{body}); len(r.rest) > 0; count++ {
		before, size, magic, crc := len(r.rest), r.i32(), uint32(r.i32()), r.i32()
		one := map[string]any{"magic": fmt.Sprintf("%08X", magic), "bodyCRC": crc, "queueId": r.i32(), "flag": r.i32()}
		one["queueOffset"], one["physicalOffset"], one["sysFlag"] = r.i64(), r.i64(), r.i32()
		one["bornTimestamp"], one["bornHost"] = r.i64(), r.host(one["sysFlag"].(int)>>4)
		one["storeTimestamp"], one["storeHost"] = r.i64(), r.host(one["sysFlag"].(int)>>5)
		one["reconsumeTimes"], one["preparedTransactionOffset"] = r.i32(), r.i64()
		body, length := r.take(r.i32()), r.i8()
		one["body"], one["bodyHex"], one["bodyLength"] = string(body), hex.EncodeToString(body), len(body)
		one["bodyCRCok"] = int(crc32.ChecksumIEEE(body)&0x7FFFFFFF) == crc
		if magic == 0xDAA320AB { // From 5.0 a topic's length may take two bytes.
			length = length<<8 | r.i8()
		}
		properties := texts{}
		one["topic"], one["properties"] = string(r.take(length)), properties
		for _, part := range strings.Split(string(r.take(r.i16())), "\x02") {
			if name, value, is := strings.Cut(part, "\x01"); is {
				properties[name] = value
			}
		}
		if before-len(r.rest) != size {
			panic("a record of another size")
		}
		put(found, fmt.Sprint("records.", count), one)
	}
	found["records.#"] = fmt.Sprint(count)
}

// shown has what an answer is by its places; its body as records or JSON where it is.
func (c *command) shown() texts {
	found := texts{"code": fmt.Sprint(c.Code), "flag": fmt.Sprint(c.Flag), "language": c.Language, "hasRemark": fmt.Sprint(c.Remark != "")}
	put(found, "extFields", c.ExtFields)
	if id := c.ExtFields["msgId"]; len(id) >= 16 {
		place, _ := strconv.ParseInt(id[len(id)-16:], 16, 64)
		found["place"] = fmt.Sprint(place)
	}
	if len(c.body) == 0 {
		found["empty"] = "true"
	} else if attempt(func() { putRecords(found, c.body) }) != "" {
		var value any
		found["hex"] = hex.EncodeToString(c.body)
		if json.Unmarshal(bareName.ReplaceAll(c.body, []byte(`$1"$2":`)), &value) == nil {
			put(found, "json", value)
		}
	}
	return found
}

func fit(of string, pattern, found texts) {
	for place, wanted := range pattern {
		text, is := found[place]
		isAddress := wanted == "<address>" && address.MatchString(text)
		isIDs := wanted == fmt.Sprintf("<ids %d>", strings.Count(text, ",")+1) && ids.MatchString(text)
		if !is || text != wanted && wanted != "<any>" && !isAddress && !isIDs {
			panic(fmt.Sprintf("%s, %s: expected %q, got %q", of, place, wanted, text))
		}
	}
}

// -- playing

type piece struct {
	Text, Hex   string
	Kind, Times int
}

type step struct {
	Ask, Answer, After, Close, Conn, Raw, Field                                     string
	Opaque, Ms, Until, SleepMs, WithinMs, NotBeforeMs, NotAfterMs, LimitMs, AfterMs int
	Header                                                                          piece
	Body                                                                            []piece
	Expect, Pushes, Save                                                            texts
}

type line struct {
	socket          net.Conn
	inbox           chan *command
	waited          map[int]bool // Whether an answer by this opaque may come.
	answers         map[int]*command
	pushes          []*command
	isAny, isClosed bool
}

type asking struct {
	line *line
	step step
	at   time.Time
}

type playing struct {
	broker, nameServer string
	names              texts
	lines              map[string]*line
	asked              map[string]asking
}

func millis(number int) time.Duration { return time.Duration(number) * time.Millisecond }

func (l *line) read() {
	defer close(l.inbox)
	attempt(func() {
		for head := make([]byte, 4); ; {
			_, err := io.ReadFull(l.socket, head)
			check(err)
			frame := make([]byte, min(binary.BigEndian.Uint32(head), 16<<20))
			_, err = io.ReadFull(l.socket, frame)
			check(err)
			l.inbox <- decode(frame)
		}
	})
}

// wait for an answer; nothing when the connection is closed or the time over. What else comes is kept.
func (l *line) wait(opaque int, within time.Duration) *command {
	for end := time.After(within); l.answers[opaque] == nil && !l.isClosed; {
		select {
		case c, isOpen := <-l.inbox:
			if l.isClosed = !isOpen; l.isClosed {
				return nil
			} else if c.Flag&1 == 0 {
				l.pushes = append(l.pushes, c)
			} else if !l.waited[c.Opaque] && (!l.isAny || l.answers[c.Opaque] != nil) {
				panic(fmt.Sprintf("an answer to %d, which nobody asked or was answered", c.Opaque))
			} else {
				l.answers[c.Opaque], l.waited[c.Opaque] = c, false
			}
		case <-end:
			return nil
		}
	}
	return l.answers[opaque]
}

func (p *playing) valueOf(found string) string {
	parts := variable.FindStringSubmatch(found)
	number, err := strconv.Atoi(p.names[parts[1]])
	if more, _ := strconv.Atoi(parts[2]); err == nil && more != 0 {
		return strconv.Itoa(number + more)
	}
	return p.names[parts[1]]
}

func content(pieces ...piece) (whole []byte) {
	for _, each := range pieces {
		raw, err := hex.DecodeString(each.Hex)
		check(err)
		whole = append(whole, bytes.Repeat(append([]byte(each.Text), raw...), max(1, each.Times))...)
	}
	return
}

func (p *playing) send(s step) asking {
	l, address := p.lines[s.Conn], p.broker
	if strings.HasPrefix(s.Conn, "ns") {
		address = p.nameServer
	}
	if l == nil {
		socket, err := net.DialTimeout("tcp", address, 5*time.Second)
		check(err)
		l = &line{socket, make(chan *command, 1000), map[int]bool{}, map[int]*command{}, nil, false, false}
		p.lines[s.Conn] = l
		go l.read()
	}
	l.waited[s.Opaque], l.isAny = true, l.isAny || s.Raw != ""
	delete(l.answers, s.Opaque)
	frame, header, body := content(piece{Hex: s.Raw}), content(s.Header), content(s.Body...)
	if s.Raw == "" {
		frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(header)+len(body)))
		frame = binary.BigEndian.AppendUint32(frame, uint32(s.Header.Kind<<24|len(header)))
		frame = append(append(frame, header...), body...)
	}
	asked := asking{l, s, time.Now()}
	l.socket.Write(frame) // Whether it is closed is seen by who waits for the answer.
	return asked
}

func (p *playing) answer(s step) {
	asked, shown := p.asked[s.Answer], texts{"silence": "true"}
	if c := asked.line.wait(asked.step.Opaque, millis(s.WithinMs)); c != nil {
		shown = c.shown()
		held := c.at.Sub(asked.at)
		if s.NotAfterMs > 0 && (held < millis(s.NotBeforeMs-1) || held > millis(s.NotAfterMs)) {
			panic(fmt.Sprintf("%s: expected after %d to %d ms, came after %v", s.Answer, s.NotBeforeMs, s.NotAfterMs, held))
		}
	} else if asked.line.isClosed {
		shown = texts{"closed": "true"}
	}
	fit(s.Answer, s.Expect, shown)
	for name, place := range s.Save {
		p.names[name] = shown[place]
	}
}

func (p *playing) until(s step) {
	for end := time.Now().Add(millis(s.LimitMs)); ; time.Sleep(millis(10)) {
		c := p.send(s).line.wait(s.Opaque, time.Until(end))
		if c == nil {
			panic(fmt.Sprintf("%s does not come to %d", s.Field, s.Until))
		} else if there, err := strconv.Atoi(c.ExtFields[s.Field]); err == nil && there >= s.Until {
			return
		}
	}
}

func (p *playing) do(s step) {
	time.Sleep(millis(s.SleepMs))
	if s.Ask != "" {
		p.asked[s.Ask] = p.send(s)
	} else if s.Answer != "" {
		p.answer(s)
	} else if s.After != "" {
		time.Sleep(time.Until(p.asked[s.After].at.Add(millis(s.Ms))))
	} else if s.Close != "" {
		p.lines[s.Close].socket.Close()
		delete(p.lines, s.Close)
	} else if s.Field != "" {
		p.until(s)
	} else if s.Pushes != nil {
		fit("pushes", s.Pushes, p.pushesWithin(millis(s.AfterMs)))
	}
}

// pushesWithin has what the broker sent of its own, on every connection, until some time from now.
func (p *playing) pushesWithin(within time.Duration) texts {
	time.Sleep(within)
	found, count := texts{}, 0
	for _, name := range slices.Sorted(maps.Keys(p.lines)) {
		for l := p.lines[name]; len(l.inbox) > 0; {
			l.wait(-1, time.Millisecond)
		}
		for _, push := range p.lines[name].pushes {
			put(found, fmt.Sprint(count), map[string]any{"conn": name, "code": push.Code, "flag": push.Flag, "extFields": push.ExtFields})
			count++
		}
	}
	found["#"] = fmt.Sprint(count)
	return found
}

// play a vector; what differs first, or nothing.
func play(text, broker, nameServer, name, cluster string) string {
	run := fmt.Sprintf("%06s", strconv.FormatInt(rand.Int63n(36*36*36*36*36*36), 36))
	text = strings.NewReplacer("${run}", run, "247b72756e7d", hex.EncodeToString([]byte(run))).Replace(text)
	names := texts{"brokerName": name, "cluster": cluster}
	p := &playing{broker, nameServer, names, map[string]*line{}, map[string]asking{}}
	said := attempt(func() {
		var vector struct{ Steps []json.RawMessage }
		check(json.Unmarshal([]byte(text), &vector))
		for _, raw := range vector.Steps {
			var s step
			check(json.Unmarshal([]byte(variable.ReplaceAllStringFunc(string(raw), p.valueOf)), &s))
			p.do(s)
		}
		for _, name := range slices.Sorted(maps.Keys(p.lines)) {
			p.lines[name].socket.(*net.TCPConn).CloseWrite()
			p.lines[name].wait(math.MinInt, millis(afterMs))
		}
	})
	for _, l := range p.lines {
		l.socket.Close()
	}
	return said
}

func main() {
	file, err := os.ReadFile(os.Args[1])
	check(err)
	has, only := strings.Split(os.Args[6], ","), append(os.Args, "")[7]
	counts, free := map[string]int{}, make(chan bool, beside)
	var mutex sync.Mutex
	tell := func(outcome, id, why string) {
		mutex.Lock()
		defer mutex.Unlock()
		counts[outcome]++
		fmt.Println(strings.TrimSpace(outcome + " " + id + " " + why))
	}
	for _, text := range strings.Split(strings.TrimSpace(string(file)), "\n") {
		var vector struct {
			ID   string
			When []string
		}
		check(json.Unmarshal([]byte(text), &vector))
		unfit := slices.DeleteFunc(vector.When, func(name string) bool {
			return slices.Contains(has, strings.TrimPrefix(name, "!")) != strings.HasPrefix(name, "!")
		})
		if only != "" && !slices.Contains(strings.Split(only, ","), vector.ID) {
			continue
		} else if len(unfit) > 0 {
			tell("SKIPPED", vector.ID, "the broker is not: "+strings.Join(unfit, ", "))
			continue
		}
		free <- true
		go func() {
			said := play(text, os.Args[2], os.Args[3], os.Args[4], os.Args[5])
			tell(map[bool]string{true: "PASS", false: "FAIL"}[said == ""], vector.ID, said)
			<-free
		}()
	}
	for range beside {
		free <- true
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", counts["PASS"], counts["FAIL"], counts["SKIPPED"])
	if counts["FAIL"] > 0 || counts["PASS"] == 0 {
		os.Exit(1)
	}
}
