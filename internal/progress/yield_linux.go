package progress

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// schedYield gives the processor to another thread that waits for it. The call is raw: the scheduler of goroutines does not see it,
// and does not take the goroutine's place away meanwhile.
func schedYield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // sched_yield cannot fail
