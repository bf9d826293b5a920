package machine

import (
	"os"
	"strings"
)

// systemDetails reads the kernel's version, the processor's name and the load averages. Each that is not known is empty.
func systemDetails() (kernel, processor, load string) {
	read := func(name string) string {
		b, _ := os.ReadFile(name) // the text is empty after an error
		return strings.TrimSpace(string(b))
	}
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			processor = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
			break
		}
	}
	if fields := strings.Fields(read("/proc/loadavg")); len(fields) >= 3 {
		load = strings.Join(fields[:3], " ")
	}
	return read("/proc/sys/kernel/osrelease"), processor, load
}
