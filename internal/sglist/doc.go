// Package sglist works on memory that is a list of slices, like the scatter/gather list of a network device. [Slice] returns a
// range of a list, [Merge] joins neighbouring slices, [Copy] copies from one list to another, and a [Cursor] returns the bytes
// of a list piece by piece. A list may contain empty slices anywhere; they have no effect.
//
// Only Copy writes to the memory of a list. All functions are safe for concurrent use with different lists.
package sglist
