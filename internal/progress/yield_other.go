//go:build !linux

package progress

// schedYield is nil because only Linux has a call for it that is known to return at once.
var schedYield func()
