package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// Limits of packages. The package at the root is the face of the module, so it has limits of its own.
const (
	maxFiles       = 40 // files of a package that are not tests
	maxRootFiles   = 30
	maxRootSymbols = 130 // exported types, functions, methods, constants and variables; not fields
)

// checkFileCounts bounds the number of files of each package but the one at the root.
func checkFileCounts(t *tree) []finding {
	count := map[string]int{}
	for _, f := range t.files {
		if f.syntax != nil && !f.isTest() {
			count[f.dir()]++
		}
	}
	var found []finding
	for dir, n := range count {
		if dir != "." && n > maxFiles {
			found = append(found, finding{path: dir, text: fmt.Sprintf("%d files that are not tests, limit %d; join small ones or split the package", n, maxFiles)})
		}
	}
	slices.SortFunc(found, func(a, b finding) int { return strings.Compare(a.path, b.path) })
	return found
}

// checkRoot bounds the number of files and of exported symbols of the package at the root.
func checkRoot(t *tree) []finding {
	files, symbols := 0, map[string]bool{}
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() || f.dir() != "." {
			continue
		}
		files++
		for _, name := range exportedSymbols(f.syntax) {
			symbols[name] = true // once, though files of several systems may declare it
		}
	}
	var found []finding
	if files > maxRootFiles {
		found = append(found, finding{path: modulePath, text: fmt.Sprintf("%d files that are not tests, limit %d", files, maxRootFiles)})
	}
	if len(symbols) > maxRootSymbols {
		found = append(found, finding{path: modulePath, text: fmt.Sprintf("%d exported symbols, limit %d", len(symbols), maxRootSymbols)})
	}
	return found
}

// exportedSymbols returns the exported functions, types, constants and variables of a file, and the exported methods of its exported
// types and interfaces with the name of the type.
func exportedSymbols(f *ast.File) []string {
	var names []string
	for _, name := range declaredNames(f) {
		if exported(name) && !isField(f, name) {
			names = append(names, name)
		}
	}
	for _, d := range f.Decls {
		if gen, ok := d.(*ast.GenDecl); ok && gen.Tok != token.TYPE {
			names = append(names, exportedValues(gen)...)
		}
	}
	return names
}

// exportedValues returns the exported names of a declaration of constants or variables.
func exportedValues(gen *ast.GenDecl) []string {
	var names []string
	for _, s := range gen.Specs {
		if s, ok := s.(*ast.ValueSpec); ok {
			for _, name := range s.Names {
				if name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// exported reports whether all parts of a name, such as "Call.Respond", are exported.
func exported(name string) bool {
	return !slices.ContainsFunc(strings.Split(name, "."), func(part string) bool { return !ast.IsExported(part) })
}

// isField reports whether name is that of a field of a struct type in f.
func isField(f *ast.File, name string) bool {
	typeName, member, ok := strings.Cut(name, ".")
	if !ok {
		return false
	}
	for _, d := range f.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range gen.Specs {
			s, ok := s.(*ast.TypeSpec)
			if !ok || s.Name.Name != typeName {
				continue
			}
			if st, ok := s.Type.(*ast.StructType); ok {
				return slices.ContainsFunc(st.Fields.List, func(field *ast.Field) bool {
					return slices.ContainsFunc(field.Names, func(id *ast.Ident) bool { return id.Name == member })
				})
			}
		}
	}
	return false
}
