package fault_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest"
	"cinnabar/verbs/verbstest/memdev"
)

// liarEnv names the flaw of the device that TestLiar runs the suite on.
const liarEnv = "VERBSTEST_LIAR"

// first lets the first matching send of every queue pair go wrong.
func first(do fault.Action, ops ...verbs.Opcode) fault.Plan {
	return fault.Plan{Rules: []fault.Rule{{Match: fault.Match{At: fault.AtSend, Nth: 1, Ops: ops}, Do: do}}}
}

// forgotten keeps files from being closed by the collector.
var forgotten []*os.File

// liars are devices with a flaw, and the sub-test that must find it.
var liars = map[string]struct {
	finder string
	open   func(t *testing.T, dev *verbs.Device) *verbs.Device
}{
	"claims a write that it did not make": {"Opcode/Write", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		return fault.Wrap(dev, first(fault.Status(verbs.StatusSuccess), verbs.OpWrite))
	}},
	"adds twice": {"Opcode/FetchAdd", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		return fault.Wrap(dev, first(fault.Duplicate(), verbs.OpFetchAdd))
	}},
	"blames the peer's program for a wrong key": {"Memory/Violations", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		return fault.Wrap(dev, first(fault.Status(verbs.StatusRemOpErr)))
	}},
	"writes a part": {"Learn/BySend", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		return fault.Wrap(dev, first(fault.Partial(100, verbs.StatusSuccess)))
	}},
	"forgets a goroutine": {"Device/Attributes", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		go func() { select {} }()
		return dev
	}},
	"forgets a descriptor": {"Device/Attributes", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		forgotten = append(forgotten, f)
		return dev
	}},
	"forgets a mapping": {"Device/Attributes", func(t *testing.T, dev *verbs.Device) *verbs.Device {
		if _, err := hostmem.Map(4096); err != nil {
			t.Fatal(err)
		}
		return dev
	}},
}

// TestLiar runs the suite on the device that the environment names.
func TestLiar(t *testing.T) {
	liar, ok := liars[os.Getenv(liarEnv)]
	if !ok {
		t.Skip("TestSuiteFindsLiars runs this in a process of its own, in which it must fail")
	}
	verbstest.TestDevice(t, func(t *testing.T, o verbstest.Options) *verbs.Device {
		return liar.open(t, verbs.NewDevice(memdev.Open(memdev.Config{})))
	})
}

// TestSuiteFindsLiars shows that the suite fails where it should: on devices that
// are right but for one thing.
func TestSuiteFindsLiars(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, liar := range liars {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group, test, _ := strings.Cut(liar.finder, "/")
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestLiar$/^"+group+"$/^"+test+"$")
			cmd.Env = append(os.Environ(), liarEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestLiar/"+liar.finder) {
				t.Errorf("%s did not find it (%v):\n%s", liar.finder, err, out)
			}
		})
	}
}
