package rmem

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
)

// BenchmarkBareRead is process_vm_readv(2) alone: what a read over na+sm cannot be faster than.
func BenchmarkBareRead(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) {
			to, err := hostmem.Map(s.size)
			must(b, err)
			from, err := hostmem.Map(s.size)
			must(b, err)
			defer func() { must(b, hostmem.Unmap(to)); must(b, hostmem.Unmap(from)) }()
			local := []unix.Iovec{{Base: &to[0]}}
			local[0].SetLen(s.size)
			remote := []unix.RemoteIovec{{Base: uintptr(hostmem.Addr(from)), Len: s.size}}
			b.SetBytes(int64(s.size))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); n != s.size || err != nil {
					b.Skipf("no such call here: %d, %v", n, err)
				}
			}
		})
	}
}
