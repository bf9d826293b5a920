// Package authz allows peers to call the RPCs that a list names, and refuses all other calls.
//
// A [List] is read from a file and makes an interceptor:
//
//	list, err := authz.Load("/etc/service/allow")
//	...
//	engine, err := cinnabar.Listen(ctx, address, &cinnabar.Config{TLS: certs.Config(), Interceptors: []cinnabar.Interceptor{list.Interceptor()}})
//	...
//	err = list.Reload() // the old list stays in force if the file is wrong
//
// Each line of the file allows the calls of one kind. A call that no line allows is refused with codes.Permission, counted and logged, and so
// is every call to an empty list:
//
//	# allow  IDENTITY             RPC         PROVIDER
//	allow    URI:spiffe://c/web   store.get   *
//	allow    subject:"CN=backup"  store.*     7
//	allow    uid:1000             *           *
//	allow    addr:192.0.2.0/24    __native_health__  *
//
// IDENTITY is a fact that was proven about the caller (package identity):
//
//	subject:TEXT               the subject of its certificate, "CN=name,O=organization"
//	DNS:TEXT email:TEXT IP:TEXT URI:TEXT    a subject alternative name of its certificate
//	uid:NUMBER                 its user, over na+sm
//	addr:PREFIX                its IP address is in the prefix, 192.0.2.0/24, or is the address 192.0.2.7
//	token                      it has proven the token of Config.Token
//	self                       it is the process itself
//	any                        every caller, also one of which nothing is known
//
// RPC is the name of an RPC, the beginning of names with * behind it, or *. Names that begin with two underscores are those of RPCs that packages of this
// module serve for themselves: health, reflection, shutdown, descriptions. A pattern allows them only if it begins with two underscores,
// so that * does not open them by accident. A peer that any line allows something may also send the frames of streams and cancel calls,
// because these requests act only on streams and calls of its own connection, which the list has allowed before.
//
// PROVIDER is the id of a provider, or *. An RPC that is registered for no provider has the id 65535 in the flavour Margo, and 0 in the
// flavours Mercury and Thallium.
//
// A part of a field that contains white space or # stands in double quotes, with the escapes of a Go string, as in subject:"CN=a b". A line
// that begins with # is a comment, and so is the rest of a line from a # that begins a field.
//
// A list decides about calls. It does not decide about memory that a handle has given to a peer, nor about connections, which Config.Admit refuses.
package authz
