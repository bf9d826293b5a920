//go:build linux

package uverbs

import (
	"sync/atomic"
	"testing"
	"unsafe"
)

// take does what the kernel does to take an element of a queue of siw: it clears the flags alone, which are the first two bytes.
func take(head *atomic.Uint32) { *(*uint16)(unsafe.Pointer(head)) = 0 }

// TestSiwSizes compares the structs with those of a C compiler.
func TestSiwSizes(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"siw_sge", unsafe.Sizeof(SGE{}), sgeSize},
		{"siw_sqe", unsafe.Sizeof(siwSQE{}), siwSQELen},
		{"siw_sqe.sge", unsafe.Offsetof(siwSQE{}.sge), 24},
		{"siw_rqe", unsafe.Sizeof(siwRQE{}), siwRQELen},
		{"siw_rqe.sge", unsafe.Offsetof(siwRQE{}.sge), 16},
		{"siw_cqe", unsafe.Sizeof(siwCQE{}), siwCQELen},
		{"siw_cqe.qp_id", unsafe.Offsetof(siwCQE{}.qp), 24},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d, want %d", c.name, c.got, c.want)
		}
	}
}
