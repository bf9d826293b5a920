// Package codecplan has the parts that all codecs plan and walk Go types with: types that write their own bytes, fields
// that travel under a condition, and the errors that name a path.
//
// Everything here is safe for concurrent use, because nothing here changes after it was made.
package codecplan
