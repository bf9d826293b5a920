package iwarp

import "runtime/debug"

// Registered memory can be a mapped file that is truncated meanwhile, or that lies on a full file system: an access to it is
// then a fault. A system call that accesses it fails. The accesses of this package are guarded, so that only the connection
// fails, because a peer chooses their time.
//
// A guarded function begins with
//
//	defer unguard(debug.SetPanicOnFault(true), &ok)
//
// and reports by ok, which it sets to true, whether the memory was there.

// unguard is deferred by a guarded function. old is the setting to go back to.
func unguard(old bool, ok *bool) {
	debug.SetPanicOnFault(old)
	if v := recover(); v != nil {
		if _, fault := v.(interface{ Addr() uintptr }); !fault {
			panic(v)
		}
		*ok = false
	}
}

// copyGuarded copies between registered memory and other; false means that the memory is not there.
func copyGuarded(dst, src []byte) (n int, ok bool) {
	ok = true
	defer unguard(debug.SetPanicOnFault(true), &ok)
	return copy(dst, src), true
}

// appendGuarded appends a copy of registered memory; false means that the memory is not there.
func appendGuarded(dst, src []byte) (out []byte, ok bool) {
	out = dst
	defer unguard(debug.SetPanicOnFault(true), &ok)
	return append(dst, src...), true
}
