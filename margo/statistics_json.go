package margo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"cinnabar"
)

// Dump writes the figures as one JSON object, as Margo's default monitor writes its file of statistics
// (margo_monitor_dump): times in seconds, sizes in bytes. e is the engine that has s as Config.Monitor; the file has its address. If
// reset is true, Dump sets all figures to zero after it has read them, even if w fails. The error is that of w.
func (s *Statistics) Dump(e *cinnabar.Engine, w io.Writer, reset bool) error {
	b, err := json.Marshal(s.report(e.Addr(), reset))
	if err != nil {
		return fmt.Errorf("margo: encode statistics: %w", err)
	}
	_, err = w.Write(b)
	return err
}

// The parts of the file, in the order that Margo writes them in.
type (
	statsJSON struct {
		Address  string              `json:"address"`
		Progress progressJSON        `json:"progress_loop"`
		RPCs     map[string]*rpcJSON `json:"rpcs"`
		Hostname string              `json:"hostname"`
		PID      int                 `json:"pid"`
		Cmdline  []string            `json:"cmdline"`
	}
	progressJSON struct { // figures of Margo's progress loop, which are zero because Go has no such loop
		Timeout   figures `json:"progress_with_timeout"`
		Value     figures `json:"progress_timeout_value_msec"`
		NoTimeout figures `json:"progress_without_timeout"`
		Trigger   figures `json:"trigger"`
	}
	rpcJSON struct {
		ID             uint64                 `json:"rpc_id"`
		Provider       uint16                 `json:"provider_id"`
		Parent         uint64                 `json:"parent_rpc_id"`
		ParentProvider uint16                 `json:"parent_provider_id"`
		Name           string                 `json:"name"`
		Origin         map[string]originJSON  `json:"origin,omitempty"`
		Target         map[string]*targetJSON `json:"target,omitempty"`
	}
	originJSON struct {
		Forward  object `json:"iforward"`
		Callback object `json:"forward_cb"`
		Wait     object `json:"iforward_wait"`
		Input    object `json:"set_input"`
		Output   object `json:"get_output"`
	}
	targetJSON struct {
		Handler  object            `json:"handler,omitempty"`
		Run      object            `json:"ult,omitempty"`
		Respond  object            `json:"irespond,omitempty"`
		Callback object            `json:"respond_cb,omitempty"`
		Wait     object            `json:"irespond_wait,omitempty"`
		Output   object            `json:"set_output,omitempty"`
		Input    object            `json:"get_input,omitempty"`
		Bulk     map[string]object `json:"bulk,omitempty"`
	}
)

// object is a JSON object with ordered members.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	separator := "{"
	for _, m := range o {
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%q:%s", separator, m.name, value)
		separator = ","
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// MarshalJSON implements [json.Marshaler].
func (f figures) MarshalJSON() ([]byte, error) {
	b := append([]byte(`{"num":`), strconv.FormatUint(f.num, 10)...)
	for _, x := range []struct {
		name  string
		value float64
	}{{"min", f.min}, {"max", f.max}, {"avg", f.avg}, {"var", f.vari}, {"sum", f.sum}} {
		b = append(b, `,"`+x.name+`":`...)
		b = strconv.AppendFloat(b, x.value, 'f', 9, 64) // Margo's precision
	}
	return append(b, '}'), nil
}

// object writes a step; since names the step before it.
func (s *stepStats) object(since string) object {
	return object{{"duration", s.took}, {"relative_timestamp_from_" + since, s.after}}
}

func (o *originStats) json() originJSON {
	return originJSON{
		Forward: o.forward.object("create"), Callback: o.callback.object("iforward_start"), Wait: o.wait.object("iforward_end"),
		Input: o.input.object("iforward_start"), Output: o.output.object("wait_end"),
	}
}

func (t *targetStats) json() *targetJSON {
	return &targetJSON{
		Handler: object{{"duration", t.handler}}, Run: t.run.object("handler_start"), Respond: t.respond.object("ult_start"),
		Callback: t.callback.object("irespond_start"), Wait: t.wait.object("irespond_end"),
		Output: t.output.object("irespond_start"), Input: t.input.object("ult_start"),
	}
}

func (t *transferStats) json() object {
	return object{
		{"itransfer", object{{"duration", t.took}, {"size", t.size}}},
		{"transfer_cb", t.callback.object("itransfer_start")},
		{"itransfer_wait", t.wait.object("itransfer_end")},
	}
}

// report makes the file.
func (s *Statistics) report(address string, reset bool) *statsJSON {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &statsJSON{Address: address, RPCs: map[string]*rpcJSON{}, PID: os.Getpid(), Cmdline: os.Args}
	f.Hostname, _ = os.Hostname() // without a name the file is still of use
	for path, o := range s.origins {
		r := f.rpc(path, s.names[path.id])
		if r.Origin == nil {
			r.Origin = map[string]originJSON{}
		}
		r.Origin["sent to "+path.peer] = o.json()
	}
	for path, t := range s.targets {
		*f.target(path, s.names[path.id]) = *t.json()
	}
	if s.exposed.took.num > 0 {
		f.target(noPath, "").bulk("create", object{{"duration", s.exposed.took}, {"size", s.exposed.size}})
	}
	for path, t := range s.transfers {
		preposition := " to "
		if path.direction == "pull" {
			preposition = " from "
		}
		f.target(path.callPath, s.names[path.id]).bulk(path.direction+preposition+path.remote, t.json())
	}
	if reset {
		s.origins, s.targets, s.transfers, s.exposed = nil, nil, nil, createStats{}
	}
	return f
}

func (t *targetJSON) bulk(name string, o object) {
	if t.Bulk == nil {
		t.Bulk = map[string]object{}
	}
	t.Bulk[name] = o
}

// target returns the part of the file for requests that came by a path.
func (f *statsJSON) target(path callPath, name string) *targetJSON {
	r := f.rpc(path, name)
	return entry(&r.Target, "received from "+path.peer)
}

// rpc returns the part of the file for an RPC and its parent.
func (f *statsJSON) rpc(path callPath, name string) *rpcJSON {
	provider, parent := uint16(path.id), uint16(path.parent)
	id, parentID := path.id|noProvider, path.parent|noProvider
	key := strings.Join([]string{
		strconv.FormatUint(parentID, 10), strconv.Itoa(int(parent)), strconv.FormatUint(id, 10), strconv.Itoa(int(provider)),
	}, ":")
	r := entry(&f.RPCs, key)
	*r = rpcJSON{ID: id, Provider: provider, Parent: parentID, ParentProvider: parent, Name: name, Origin: r.Origin, Target: r.Target}
	return r
}
