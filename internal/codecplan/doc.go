// Package codecplan has the parts that all codecs share to plan and walk Go types: scalars, types that write their own bytes, fields
// that travel under a condition, and the errors that name a path.
//
// Everything here is safe for concurrent use, because nothing here changes after it was made.
package codecplan
