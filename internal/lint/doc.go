// Package lint holds the rules of this repository that the compiler and the general linters cannot check, as tests.
//
//	go test ./internal/lint
//
// The rules are
//
//   - layers: each package has a row in the table of arrows, and imports only the packages in it;
//   - corners: unsafe stays in its packages, in files named for it, and "C" in one, behind a build tag;
//   - source: every package has a doc comment and a bounded number of files, every file is formatted, of bounded length, and does not sleep;
//   - text: nothing is marked as left open, and no file contains a path or a package host of one machine;
//   - pages: the README has the two commands that a newcomer needs, verbatim, CI runs the shell blocks of the README and of all pages in docs, and no such page
//     hides a command from it;
//   - manual: each page begins with the abilities that its reader gains and is in the index, no relative link is broken, the tests and the
//     names of Go on its pages exist, those of docs/request.md with the functions that are not exported, and the tables of C and Go names
//     in docs/verbs.md leave out no field and no constant;
//   - prose: comments, texts and pages name the party that acts, and seldom use the words that stand in place of a name.
//
// Each rule is a function from a tree to findings. The tests run it over this repository, and over small trees that
// break it, so that a rule that stopped finding anything would be noticed.
//
// The tree is read from the file system, not from version control: the rules hold for a fresh clone, for an unpacked
// archive, and for work not yet committed. Directories named testdata, hidden directories other than .ci, and
// files that git ignores by name are skipped.
package lint
