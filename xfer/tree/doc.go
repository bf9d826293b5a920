// Package tree moves directories with their contents by the fast protocol of package xfer: directories, files, symbolic links, hard links,
// sparse files, modes and times.
//
// The nouns:
//
//   - A [Manifest] lists the entries of a tree, without their data.
//   - A [Tree] is a tree to be sent. [Scan] lists any fs.FS, [ScanDir] a directory; xfer's Sender.Send takes the result of [Tree.Source].
//   - A [Sink] stores the trees that a receiver gets. A [Dir] makes sinks that store trees in a directory; its method Open can be xfer's Receiver.Open.
//   - [Patterns] name the entries that a scan leaves out, in gitignore's syntax.
//
// A receiver and a sender:
//
//	dir, err := tree.OpenDir(ctx, "incoming", tree.DirOptions{})
//	r := xfer.Receiver{Open: dir.Open}
//	err = r.Serve(ctx, l) // until ctx ends
//
//	t, err := tree.ScanDir(ctx, "photos", tree.ScanOptions{})
//	defer t.Close()
//	s := xfer.Sender{Protocol: xfer.Fast}
//	res, err := s.Send(ctx, dev, addr, t.Source())
//
// # On the wire
//
// A tree crosses as one file of xfer. The file's name is that of the tree with a slash behind it, which receivers of plain files refuse. Its contents are the manifest
// and, behind it, the data of all files in the order of the manifest, without gaps, so that small files share chunks. The bytes of the
// manifest stand in manifest.go.
//
// # Bytes that the receiver has
//
// The manifest is the head of the source (xfer.Choice), and a [Dir] chooses from the rest. It keeps the part of a transfer that was cut, for DirOptions.KeepFor, and asks for
// the sums of these bytes when the tree is sent again. With the wishes WishUpdate and WishChecksum it keeps files of its own that are the sender's, and with WishDelete it
// removes the others, if DirOptions.AllowDelete says so.
//
// # Guarantees
//
// The receiver checks the whole manifest before it writes anything. If it cannot or may not store a name, it refuses the whole tree with a
// [RefusedError], which has the names and the reasons. Links are not followed: a symbolic link crosses as text. All entries get
// their names after the digest of all bytes has been compared. A new tree appears by one rename, and so whole or
// not at all, but for the modes and times of its directories, which are set last. With DirOptions.Overwrite a tree goes into an existing one, entry by entry, each of them whole; entries that the sender
// does not have stay. A failed transfer leaves nothing but the part that DirOptions.KeepFor lets it keep, under a temporary name, and the remains of a killed receiver are removed later (see [OpenDir]). There is one exception: when a
// tree goes into an existing one, an error of the disk may come after some entries have their names. The error then says that these are stored.
//
// A manifest comes from a peer that is not trusted. Its parser bounds the entries, the depth, the length of paths, and the memory of all manifests of one Dir together.
//
// # Limits
//
// Owners, access control lists, extended attributes and the times of symbolic links do not cross. The sender refuses devices, sockets and
// named pipes. Names are UTF-8 without control characters (xfer.CheckName).
package tree
