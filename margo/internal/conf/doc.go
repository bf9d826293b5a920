// Package conf reads and writes the JSON configuration of Margo 0.24, which margo_init_ext takes and
// margo_get_config returns.
//
// # Nouns
//
//   - A [Config] is a whole configuration with nothing left open: pools that Margo adds are there, references are
//     indexes, settings that were not given have Margo's defaults.
//   - [Parse] makes one of a document, [Default] of none, [Config.Append] writes the document that stands for it.
//   - An [Error] names the key that a document is refused for.
//   - [Config.Notes] names the accepted settings that have no effect in Go.
//
// # Usage
//
//	c, err := conf.Parse(document, os.Getenv)
//	for _, p := range c.Pools {
//		...
//	}
//	document, err = c.Append(nil, conf.Options{})
//
// # Fixed point
//
// Parse reads the documents that Append writes, and Append then writes the same bytes. C reads them too: settings that Margo does not
// have are in the object "cinnabar", which Margo passes over.
//
// # Strictness
//
// Documents come from files, command lines and other programs. They are limited in size and depth, no key may occur
// twice, no key may be unknown (C passes over those it does not know, and over misspelt ones), and a value of the wrong
// type is refused, not converted. A null is as good as no value, as in C.
//
// # Concurrency
//
// A Config is plain data. Goroutines may read one at the same time; a change needs exclusive access.
package conf
