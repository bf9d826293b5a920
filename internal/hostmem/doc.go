// Package hostmem is the memory of this process as a device sees it:
// addresses, mappings outside the Go heap, pinned slices, locked pages, and
// atomic access to registered bytes.
//
// The nouns:
//
//   - A mapping ([Map], [Unmap]) is page-aligned, zeroed memory that the Go
//     collector neither scans nor frees. [Mapped] counts the live ones, so that
//     a test can show that none is left.
//   - A [Pin] holds a Go slice's backing array in place and alive.
//   - A lock ([Lock], [Unlock]) keeps the pages of a slice resident.
//   - [Discard] gives pages of memory back to the system. The memory stays mapped, and its bytes are 0 afterwards.
//   - [Load64], [Store64], [Add64], [CompareAndSwap64], [LoadUint32] and
//     [StoreUint32] act on registered bytes with the processor's atomic
//     instructions, in the byte order of the host.
//   - [Bytes] views a slice of numbers as its bytes; [Addr] is the address that
//     goes on the wire.
//   - [Guard] and [Copy] access memory that may be a mapping of a file. If the
//     file shrinks, the access returns an error instead of ending the process.
//   - [Uncleared] is heap memory that is not cleared, for large payloads.
//   - [CopyExposed] and [AppendExposed] copy memory that peers may access at the
//     same time, unseen by the race detector.
//
// A registration uses them like this:
//
//	b, err := hostmem.Map(1 << 20)
//	if err != nil {
//		return err
//	}
//	defer hostmem.Unmap(b)
//	if err := hostmem.Lock(b); err != nil {
//		return err
//	}
//	defer hostmem.Unlock(b)
//	old, ok := hostmem.Add64(b[64:72], 1)
//
// All functions are safe for concurrent use. Their arguments and results are
// slices and integers, never pointers.
//
// Limits: in builds with the race detector [Map] hands out Go heap memory,
// because the detector does not see mapped memory. Page locking exists on Linux
// only and is refused with [errors.ErrUnsupported] elsewhere.
package hostmem
