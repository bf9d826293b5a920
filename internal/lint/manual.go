package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
)

const (
	verbsPage   = "docs/verbs.md"
	verbsValues = "verbs"
)

// pageTypes are the types of which the manual lists all fields or constants beside those of C.
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
	listed := map[string]bool{}
	for _, span := range codeSpan.FindAllSubmatch(page.data, -1) {
		for _, word := range identifier.FindAllString(string(span[1]), -1) {
			listed[word] = true
		}
	}
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() || f.dir() != verbsValues {
			continue
		}
		for _, name := range valueNames(f.syntax) {
			if !listed[name.Name] {
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

// walkPage names the functions that a request runs through.
const walkPage = "docs/request.md"

// qualified is a name with its package, "hg.Call.Start".
var qualified = regexp.MustCompile(`^([a-z][a-z0-9]*)((?:\.[A-Za-z_][A-Za-z0-9_]*)+)$`)

// checkWalks wants each qualified name on walkPage declared in this module: a function, method, type or field.
func checkWalks(t *tree) []finding {
	page := t.file(walkPage)
	if page == nil {
		return []finding{{path: walkPage, text: "missing"}}
	}
	declared := map[string]bool{}
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() {
			continue
		}
		for _, name := range declaredNames(f.syntax) {
			declared[f.syntax.Name.Name+"."+name] = true
		}
	}
	var found []finding
	for n, l := range prose(page) {
		for _, span := range codeSpan.FindAllStringSubmatch(l, -1) {
			if qualified.MatchString(span[1]) && !declared[span[1]] {
				found = append(found, finding{page.path, n, fmt.Sprintf("%s is not declared", span[1])})
			}
		}
	}
	return found
}

// declaredNames returns the names of a file's functions and types, and with their type those of methods and fields.
func declaredNames(f *ast.File) []string {
	var names []string
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			} else {
				names = append(names, receiverName(d.Recv.List[0].Type)+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					names = append(names, s.Name.Name)
					names = append(names, membersOf(s)...)
				}
			}
		}
	}
	return names
}

// membersOf returns the fields of a struct type and the methods of an interface type, with the name of the type.
func membersOf(s *ast.TypeSpec) []string {
	var list *ast.FieldList
	switch t := s.Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return nil
	}
	var names []string
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, s.Name.Name+"."+name.Name)
		}
	}
	return names
}

// receiverName returns the name of a receiver's type without pointer and type parameters.
func receiverName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.IndexListExpr:
		return receiverName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
