package lint

import (
	"go/ast"
	"regexp"
	"slices"
)

const (
	verbsPage   = "docs/verbs.md"
	verbsValues = "verbs"
)

// pageTypes are the types whose fields or constants the manual lists in full beside those of C.
var pageTypes = []string{"SGE", "SendWR", "RecvWR", "WC", "Opcode", "SendFlags", "Access", "WCOp", "WCStatus"}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// codeSpan is text between backquotes.
var codeSpan = regexp.MustCompile("`([^`]+)`")

// checkVerbsPage wants every field and constant of pageTypes in the manual's tables.
func checkVerbsPage(t *tree) []finding {
	page := t.file(verbsPage)
	if page == nil {
		return []finding{{path: verbsPage, text: "missing"}}
	}
	told := map[string]bool{}
	for _, span := range codeSpan.FindAllSubmatch(page.data, -1) {
		for _, word := range identifier.FindAllString(string(span[1]), -1) {
			told[word] = true
		}
	}
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() || f.dir() != verbsValues {
			continue
		}
		for _, name := range valueNames(f.syntax) {
			if !told[name.Name] {
				found = append(found, finding{f.path, t.line(name.Pos()), name.Name + " is missing in " + verbsPage})
			}
		}
	}
	return found
}

// valueNames returns the exported fields and constants of pageTypes that a file declares.
func valueNames(f *ast.File) []*ast.Ident {
	var names []*ast.Ident
	for _, d := range f.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		inherited := false // a constant without type and value has those of the one before
		for _, s := range gen.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, fieldNames(s)...)
			case *ast.ValueSpec:
				if s.Type != nil || s.Values != nil {
					inherited = isPageType(s.Type)
				}
				if inherited {
					names = append(names, s.Names...)
				}
			}
		}
	}
	return names
}

func fieldNames(s *ast.TypeSpec) []*ast.Ident {
	var names []*ast.Ident
	if st, ok := s.Type.(*ast.StructType); ok && slices.Contains(pageTypes, s.Name.Name) {
		for _, field := range st.Fields.List {
			names = append(names, field.Names...)
		}
	}
	return names
}

func isPageType(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && slices.Contains(pageTypes, id.Name)
}
