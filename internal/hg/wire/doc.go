// Package wire encodes and decodes the messages of Mercury and the parts that Margo adds to them. It has no connections, memory or clocks:
// input is bytes, output is bytes and values.
//
//		+-------------+-----------+----------------+---------------------+
//		| core header | HG header | Margo's header | arguments or result |
//		+-------------+-----------+----------------+---------------------+
//
//	  - [Form] is the layout of core header and HG header, which depends on how Mercury was built.
//	  - [RequestHeader] and [ResponseHeader] give access to the fields of a core header. [ParseRequest], [PutRequest], [ParseResponse] and
//	    [PutResponse] read and write both headers, as a [Request] or a [Response].
//	  - [PutProbe] and [ParseProbeAnswer] find out the form of a peer.
//	  - [AppendMargoRequest], [ParseMargoResponse] and their kin read and write Margo's headers.
//	  - [ID] makes the 64-bit id of a name and a provider as Margo does. [Djb2] makes the id that plain Mercury gives a name.
//	  - [Bulk] is a bulk descriptor, which describes memory to peers. It also travels in the place of a payload that does not fit into a
//	    message, see [FlagMoreData].
//	  - [Tags] hands out the tags by which responses find their calls.
//
// Bytes from a peer are hostile: the parsers check every length before they use it, and return an [Error]. Except for the methods of Tags,
// which are safe for concurrent use, all functions depend on their arguments alone.
package wire
