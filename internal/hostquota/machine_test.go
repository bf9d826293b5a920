package hostquota

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMachine(t *testing.T) {
	c := Machine()
	if c.Memory <= 0 || c.Files <= 0 || c.MemorySource == "" || c.FilesSource == "" {
		t.Errorf("the capacity is %+v", c)
	}
	if got := (Capacity{Memory: 10, Files: 4096}); got.DefaultMemory() != 5 || got.DefaultConnections(2) != 1536 {
		t.Errorf("defaults are %d and %d, want 5 and 1536", got.DefaultMemory(), got.DefaultConnections(2))
	}
	if got := (Capacity{Files: 1}).DefaultConnections(2); got != 1 {
		t.Errorf("a single descriptor gives %d connections, want 1", got)
	}
}

func TestGroupMemory(t *testing.T) {
	for _, test := range []struct {
		name   string
		files  map[string]string
		want   int64
		source string
	}{
		{"version 2, the parent's is less", map[string]string{
			"proc/self/cgroup": "0::/run/inner\n", "sys/fs/cgroup/run/inner/memory.max": "2000\n", "sys/fs/cgroup/run/memory.max": "1000\n",
		}, 1000, "cgroup /run: memory.max"},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/outer\n", "sys/fs/cgroup/outer/memory.max": "max\n"}, 0, ""},
		{"version 1", map[string]string{
			"proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4096\n",
		}, 4096, "cgroup /x: memory.limit_in_bytes"},
		{"version 1, none", map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0, ""},
		{"a path that leads outside", map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/x/memory.max": "7\n"}, 7, "cgroup /x: memory.max"},
		{"nonsense", map[string]string{"proc/self/cgroup": "what\n"}, 0, ""},
		{"nothing", nil, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range test.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got, source := groupMemory(root); got != test.want || source != test.source {
				t.Errorf("limit %d of %q, want %d of %q", got, source, test.want, test.source)
			}
		})
	}
}
