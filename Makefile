# A few targets over the go command, for packagers. CONTRIBUTING.md has the commands for a change.

OUT ?= dist
TAG ?= cinnabar:latest
PLATFORMS ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64

.PHONY: build test release man image clean

build: # the command for this machine, ./cinnabar
	go build ./cmd/cinnabar

test:
	go test ./...

release: # archives of static binaries, lists of their modules, and SHA256SUMS; two runs give equal files
	go run ./internal/release -out $(OUT) -platforms $(PLATFORMS)

man: # the manual pages
	go run ./cmd/cinnabar man --dir $(OUT)/man1

image: # a container image, with buildah
	contrib/container/build $(TAG)

clean:
	rm -rf $(OUT) cinnabar cinnabar.exe
