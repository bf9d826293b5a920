// Command sample prints comments and names of the project for a reader's check: the reader sees one declaration without its body, with its
// comment, and writes down which party does what and why. A second person compares each answer with the code. At most one answer in
// twenty may be wrong.
//
//	go run ./internal/lint/sample $(git rev-parse HEAD)
//
// The argument is the seed, so that the same commit gives the same sample: ten comments in each of ten packages, and forty exported
// names.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
)

const (
	packages = 10 // packages in the sample
	comments = 10 // comments of each
	names    = 40 // exported names
	longest  = 15 // lines of a declaration that are printed
)

// item is one declaration with a comment.
type item struct {
	pkg     string // its folder
	name    string
	code    string // the declaration without bodies and inner comments
	comment string
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./internal/lint/sample SEED")
		os.Exit(2)
	}
	items, err := collect(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i, it := range pick(items, os.Args[1]) {
		if _, err := fmt.Fprintf(os.Stdout, "== %d. package %s\n%s\n\n%s\n\n", i+1, it.pkg, it.comment, it.code); err != nil {
			os.Exit(1)
		}
	}
}

// pick returns the sample that seed stands for.
func pick(items []item, seed string) []item {
	h := fnv.New64a()
	h.Write([]byte(seed))
	r := rand.New(rand.NewPCG(h.Sum64(), 0))
	byPackage := map[string][]item{}
	var public []item
	for _, it := range items {
		byPackage[it.pkg] = append(byPackage[it.pkg], it)
		if ast.IsExported(it.name) && !strings.Contains(it.pkg, "internal") {
			public = append(public, it)
		}
	}
	var folders []string
	for p, list := range byPackage {
		if len(list) >= comments {
			folders = append(folders, p)
		}
	}
	slices.Sort(folders)
	var picked []item
	for _, p := range some(r, folders, packages) {
		picked = append(picked, some(r, byPackage[p], comments)...)
	}
	return append(picked, some(r, public, names)...)
}

// some returns n elements of list in random order, or all if there are fewer.
func some[T any](r *rand.Rand, list []T, n int) []T {
	list = slices.Clone(list)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

// collect returns the commented declarations below root, sorted. It leaves out tests, examples and commands of tests.
func collect(root string) ([]item, error) {
	var items []item
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "examples", "test", "bench"}, d.Name())) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		list, err := declarations(name, text)
		items = append(items, list...)
		return err
	})
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name), cmp.Compare(a.code, b.code))
	})
	return items, err
}

// declarations returns the commented declarations of the file name, which has this text.
func declarations(name string, text []byte) ([]item, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var items []item
	add := func(id *ast.Ident, doc *ast.CommentGroup, node any) error {
		if doc == nil {
			return nil
		}
		code, err := source(fset, node)
		items = append(items, item{pkg: path.Dir(name), name: id.Name, code: code, comment: strings.TrimSpace(doc.Text())})
		return err
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			doc := d.Doc
			d.Doc, d.Body = nil, nil
			err = add(d.Name, doc, d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					doc := cmp.Or(s.Doc, d.Doc)
					s.Doc = nil
					err = add(s.Name, doc, &ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{s}})
				case *ast.ValueSpec:
					doc := cmp.Or(s.Doc, s.Comment)
					s.Doc, s.Comment = nil, nil
					err = add(s.Names[0], doc, &ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{s}})
				}
				if err != nil {
					return nil, err
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return items, nil
}

// source prints a declaration, which has no more than longest lines then.
func source(fset *token.FileSet, node any) (string, error) {
	var b bytes.Buffer
	if err := format.Node(&b, fset, node); err != nil {
		return "", err
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) > longest {
		lines = append(lines[:longest], "...")
	}
	return strings.Join(lines, "\n"), nil
}
