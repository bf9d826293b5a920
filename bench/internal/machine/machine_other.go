//go:build !linux

package machine

func systemDetails() (kernel, processor, load string) { return "", "", "" }
