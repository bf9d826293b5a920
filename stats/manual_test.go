package stats_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/stats"
)

// manual is the page that explains the counters.
const manual = "../docs/observe.md"

// TestManual looks for each counter and each resource in the first column of the tables, and for each setting beside them in Config.
// parity: D34
func TestManual(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Counters and the settings that move them\n")
	if !found {
		t.Fatalf("%s has no section about the counters", manual)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	explained, settings := map[string]bool{}, map[string]bool{}
	for line := range strings.SplitSeq(section, "\n") {
		if cells := strings.Split(strings.Trim(line, "|"), "|"); len(cells) > 1 {
			for _, name := range quoted(cells[0]) {
				explained[name] = true
			}
			for _, name := range quoted(cells[len(cells)-1]) {
				settings[name] = true
			}
		}
	}
	var names []string
	for _, typ := range []reflect.Type{reflect.TypeFor[stats.Net](), reflect.TypeFor[stats.Pool]()} {
		for _, f := range reflect.VisibleFields(typ) {
			names = append(names, f.Name)
		}
	}
	engine, err := cinnabar.Open(t.Context(), "ofi+tcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range engine.Stats().Security.Quotas {
		names = append(names, q.Resource)
	}
	if err := engine.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range names {
		if !explained[name] {
			t.Errorf("%s does not explain %q", manual, name)
		}
	}
	elsewhere := []string{"Engine.Alloc", "regmem/pool", "ofi+verbs", "Progress.Mode", "PoolConfig.Workers", "PoolConfig.Queue"}
	for name := range settings {
		if _, ok := reflect.TypeFor[cinnabar.Config]().FieldByName(name); !ok && !slices.Contains(elsewhere, name) {
			t.Errorf("%s names the setting %q, which does not exist", manual, name)
		}
	}
}

// quoted returns the texts between backquotes.
func quoted(s string) (list []string) {
	parts := strings.Split(s, "`")
	for i := 1; i < len(parts); i += 2 {
		list = append(list, parts[i])
	}
	return list
}
