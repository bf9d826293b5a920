package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// tree is a repository read into memory. It is not changed after load returns.
type tree struct {
	files []*file
	fset  *token.FileSet
}

// file is one text file of the repository.
type file struct {
	path   string // slash-separated, from the repository's root
	data   []byte
	syntax *ast.File // nil unless the name ends in .go
	nested bool      // belongs to a module below the root module
}

// finding is one place that breaks a rule.
type finding struct {
	path string
	line int // 1-based; 0 means the whole file
	text string
}

func (f finding) String() string {
	if f.line == 0 {
		return fmt.Sprintf("%s: %s", f.path, f.text)
	}
	return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text)
}

// load reads the repository at fsys. Go files must parse.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	var nested []string // directories that hold a go.mod of their own
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipDir(d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || skipFile(d.Name()) {
			return nil
		}
		if d.Name() == "go.mod" && path.Dir(name) != "." {
			nested = append(nested, path.Dir(name)+"/")
		}
		return t.add(fsys, name)
	})
	if err != nil {
		return nil, err
	}
	for _, f := range t.files {
		f.nested = slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(f.path, dir) })
	}
	return t, nil
}

func skipDir(name string) bool {
	hidden := strings.HasPrefix(name, ".") && name != "." && name != ".ci"
	return hidden || name == "testdata"
}

// skipFile reports the files that git ignores, as .gitignore names them: personal workspaces and the output of tools. So is
// the file by which a worktree finds its repository.
func skipFile(name string) bool {
	if name == ".git" {
		return true
	}
	switch path.Ext(name) {
	case ".test", ".prof", ".out":
		return true
	}
	return strings.HasPrefix(name, "go.work")
}

// add reads one file. Binary files, those with a zero byte, are left out.
func (t *tree) add(fsys fs.FS, name string) error {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	f := &file{path: name, data: data}
	if path.Ext(name) == ".go" {
		if f.syntax, err = parser.ParseFile(t.fset, name, data, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return err
		}
	}
	t.files = append(t.files, f)
	return nil
}

// file returns the file at name, or nil.
func (t *tree) file(name string) *file {
	i := slices.IndexFunc(t.files, func(f *file) bool { return f.path == name })
	if i < 0 {
		return nil
	}
	return t.files[i]
}

// hasDir reports whether some file lies directly in dir.
func (t *tree) hasDir(dir string) bool {
	return slices.ContainsFunc(t.files, func(f *file) bool { return f.dir() == dir })
}

// line returns the line of pos.
func (t *tree) line(pos token.Pos) int { return t.fset.Position(pos).Line }

// dir returns the directory of f, "." for the root.
func (f *file) dir() string { return path.Dir(f.path) }

func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// lines calls yield with each line and its 1-based number.
func (f *file) lines(yield func(int, string) bool) {
	n := 0
	for l := range strings.Lines(string(f.data)) {
		n++
		if !yield(n, strings.TrimRight(l, "\r\n")) {
			return
		}
	}
}
