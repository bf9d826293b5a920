// Command fabricpeer talks to libfabric's fi_pingpong over verbs;ofi_rxm. It proves that an endpoint of package ofiverbs exchanges messages
// with a program in C from outside this project. The other side is fi_pingpong:
//
//	fi_pingpong -p 'verbs;ofi_rxm' -e rdm -m tagged -c -S SIZE -I COUNT [ADDRESS]
//	fabricpeer -address ADDRESS [-control PORT] [-connect ADDRESS] [-device NAME] [-size SIZE] [-count COUNT] [-corrupt NUMBER]
//
// The program serves one fi_pingpong, or with -connect is its client. It uses the software device, verbs/iwarp, unless -device names a real
// one. SIZE is at most 16384 bytes, because longer messages travel in segments, which an endpoint refuses.
//
// The two sides use a TCP connection for control, 47592 is its usual port, and the fabric for messages:
//
//   - On the control connection the server sends its address on the fabric, and the client answers with its own: the length in 4 bytes,
//     big endian; the format in 4 bytes, little endian, which is 2 for an IPv4 address; and the address in 16 bytes.
//   - The client sends "q" and a NUL, and the server answers "a" and a NUL.
//   - The client sends COUNT messages, each of which the server answers with one of the same size. All messages have the tag 1234.
//   - The client sends COUNT in 10 bytes, padded with NUL, and the server answers "cnt ok" and a NUL.
//   - Both sides send a last message, "fin" and a NUL.
//
// The bytes of messages are taken in turn from the 62 characters 0 to 9, a to z and A to Z. Message number n of either side, from 0 on, begins with
// character 7n modulo 62. Both sides check each byte. With -corrupt the program changes one byte of the message with that number, and fi_pingpong
// must report it.
//
// The exit status is 0 if the whole conversation took place and all received bytes were right.
package main
