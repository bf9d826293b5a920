package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Bounds of a good clock.
const (
	clockGrain = time.Microsecond      // resolution
	clockSlow  = 500 * time.Nanosecond // time of a reading; a fast clock takes less than 100 ns
	clockYear  = 2024                  // an earlier date is wrong, because this program is younger
	clockDir   = "sys/devices/system/clocksource/clocksource0/"
)

// slowClocks are the clock sources whose readings take a microsecond or more, because they read a device.
var slowClocks = []string{"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}

func probeClock(_ context.Context, x *exam) {
	source := x.word(clockDir + "current_clocksource")
	before := len(x.found)
	cost := x.cost()
	if slices.Contains(slowClocks, source) {
		x.add(levelWarning, fmt.Sprintf("the clock is slow: a reading takes %v", cost), "the clock source is "+source,
			fmt.Sprintf("echo tsc > /%scurrent_clocksource, if tsc is one of those available (%s); see the kernel's log for the reason of its choice", clockDir, x.word(clockDir+"available_clocksource")))
	} else if cost > clockSlow {
		x.add(levelWarning, fmt.Sprintf("a reading of the clock takes %v", cost), "the clock source is "+source+"; readings may be system calls, or the machine is busy",
			"choose a source that the vDSO reads, such as tsc or kvm-clock")
	}
	resolution, known := x.resolution()
	if known && resolution > clockGrain {
		x.add(levelWarning, fmt.Sprintf("the monotonic clock moves in steps of %v", resolution), "the kernel has no high-resolution timers", "build or boot the kernel with high-resolution timers (highres=on)")
	}
	if now := x.now(); now.Year() < clockYear {
		x.add(levelWarning, "the date of this machine is "+now.UTC().Format(time.DateOnly), "it was not set", "set it, for example by chrony or systemd-timesyncd: certificates and logs depend on it")
	}
	if len(x.found) > before {
		return
	}
	text := fmt.Sprintf("a reading of the clock takes %v", cost)
	if known {
		text += fmt.Sprintf(", its resolution is %v", resolution)
	}
	if source != "" {
		text += ", its source is " + source
	}
	x.ok("%s", text)
}

// clockCost returns the time that one reading of the clock takes: the least of several rounds, because other processes interrupt some.
func clockCost() time.Duration {
	const rounds, readings = 8, 200
	least := time.Hour
	for range rounds {
		began := time.Now()
		for range readings - 1 {
			_ = time.Now() // only its duration counts
		}
		least = min(least, time.Since(began)/readings)
	}
	return least
}
