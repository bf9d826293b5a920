package balance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"cinnabar/codes"
)

// GroupFile takes the members of a group from a file of Flock, Mochi's group service. Each member is a server. The file is a JSON object:
//
//	{"members": [{"address": "ofi+tcp://192.0.2.7:4321", "provider_id": 42}], "metadata": {}}
//
// Resolve reads the file anew each time, so a Client sees a change after Config.Refresh at the latest. Flock replaces the file by a rename, and a program that writes one should
// do so too, because a Client could otherwise read a part of it. Other keys than members are ignored, metadata among them.
type GroupFile struct {
	Path string
	// Provider takes the place of the provider ids in the file: those that Flock writes are of its own providers, which know the group and do not serve
	// the program's RPCs. nil: the calls are addressed to the ids in the file.
	Provider *uint16
}

// maxGroupFile is the largest number of bytes of a group file, which has room for more than 10,000 members.
const maxGroupFile = 1 << 20

// Resolve implements [Resolver]. The servers are in the order of the file. Resolve returns an error if the file cannot be read, is no valid JSON, lists no members, or has a
// member without an address or a provider id. The error names the file, and the field if the fault is in one. A Client then keeps the servers that it has.
func (g GroupFile) Resolve(context.Context) ([]Address, error) {
	data, err := readGroupFile(g.Path)
	if err != nil {
		return nil, fmt.Errorf("balance: the group file: %w", err) // the error has the path
	}
	list, err := parseGroup(data)
	if err != nil {
		return nil, fmt.Errorf("balance: the group file %q: %w: %w", g.Path, codes.InvalidArg, err)
	}
	if g.Provider != nil {
		for i := range list {
			list[i].Provider = g.Provider
		}
	}
	return list, nil
}

// readGroupFile reads a regular file. It opens the file without waiting, because the opening of a named pipe would wait for a writer.
func readGroupFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%q: %w: it is no regular file", name, codes.InvalidArg)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxGroupFile+1))
	if err == nil && len(data) > maxGroupFile {
		err = fmt.Errorf("%q: %w: it has more than %d bytes", name, codes.InvalidArg, maxGroupFile)
	}
	return data, err
}

// parseGroup returns the members of a group. The types are those that Flock accepts; keys are compared without regard to case, as package json does.
func parseGroup(data []byte) ([]Address, error) {
	var group struct {
		Members []json.RawMessage `json:"members"`
	}
	if err := json.Unmarshal(data, &group); err != nil {
		return nil, fieldError("", err)
	}
	if len(group.Members) == 0 {
		return nil, errors.New("members is absent or empty; a group has at least one member")
	}
	list := make([]Address, len(group.Members))
	for i, data := range group.Members {
		field := fmt.Sprintf("members[%d]", i)
		var member struct {
			Address    *string `json:"address"`
			ProviderID *uint16 `json:"provider_id"`
		}
		if err := json.Unmarshal(data, &member); err != nil {
			return nil, fieldError(field, err)
		}
		switch {
		case member.Address == nil || *member.Address == "":
			return nil, fmt.Errorf("%s.address is absent or empty", field)
		case member.ProviderID == nil:
			return nil, fmt.Errorf("%s.provider_id is absent", field)
		}
		list[i] = Address{Addr: *member.Address, Provider: member.ProviderID}
	}
	return list, nil
}

// fieldError returns an error that names the field with the wrong type: field itself or a key below it. Other errors it returns unchanged.
func fieldError(field string, err error) error {
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err // of the syntax, with its place
	}
	if field != "" && e.Field != "" {
		field += "."
	}
	if field += e.Field; field == "" {
		field = "the file"
	}
	want := map[string]string{"string": "a string", "uint16": "a number from 0 to 65535", "[]json.RawMessage": "an array"}[e.Type.String()]
	if want == "" {
		want = "an object"
	}
	return fmt.Errorf("%s is %s, must be %s", field, e.Value, want)
}
