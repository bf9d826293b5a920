// Package wire makes and parses the parts of a message that Margo adds to Mercury's: the ids of RPCs, and the two short headers
// in front of the arguments and the results of a program.
//
//   - [ID] makes the 64-bit id of a name and a provider as Margo does. [Djb2] makes the id that plain Mercury gives a name.
//   - [AppendRequestHeader], [ParseResponseHeader] and their kin write and read the two headers.
//
// The results of all functions depend on their arguments alone. All functions are safe for concurrent use.
package wire
