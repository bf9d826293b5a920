// Package sglist works on memory that is a list of slices, as in a scatter/gather list of a network device: [Slice] takes a
// range of it, [Merge] joins neighbours, [Copy] copies from one list to another, and a [Cursor] walks through a list piece by
// piece. Empty slices may be anywhere in a list and mean nothing.
//
// Functions read lists and never write to the memory behind them, except Copy. They are safe for concurrent use as far as
// their arguments are.
package sglist
