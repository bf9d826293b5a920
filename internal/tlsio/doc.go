// Package tlsio puts TLS 1.3 of crypto/tls around a socket that never blocks.
//
// A [Conn] has two phases. In the first one, [Server] or [Client] makes the handshake on a blocking net.Conn, whose deadlines bound it.
// Then [Conn.Attach] gives the Conn a [Socket], and afterwards no method blocks: the Conn reads ciphertext from the Socket into memory,
// crypto/tls decrypts it there, encrypts plaintext into memory, and the Conn writes that to the Socket.
//
//	            TryReadv                              TryWritev
//	Socket ---> in, 64 KiB ---> crypto/tls ---> plaintext ---> stage, 16 KiB ---> crypto/tls ---> out ---> Socket
//
// When the memory is empty, its Read returns a temporary error, which crypto/tls does not keep. So a Read that has found a part of a record goes on when
// the rest has come. Writes to memory always succeed. The memory of one direction is bounded: one call of TryReadv takes 64 KiB from the
// Socket, and TryWritev encrypts at most 128 KiB and no more until the Socket has taken them. A deadline is never set on the TLS
// connection, because crypto/tls refuses all writes after one that has expired.
//
// A Conn sends no session tickets and resumes no session, so that each connection proves the certificates that its two ends have at
// that time. crypto/tls answers key updates and does not begin them.
//
// At most one goroutine at a time may call each of TryReadv and TryWritev; the two may run at the same time. All other methods are safe
// for concurrent use after Attach.
package tlsio
