package tree

import (
	"fmt"
	"path"
	"strings"
)

// Patterns leave entries out of a tree, in the syntax of gitignore: the last pattern that matches decides, and one that begins with an
// exclamation mark includes. The entries of an excluded directory are excluded too. A nil *Patterns excludes nothing.
type Patterns struct{ rules []rule }

// rule is one pattern.
type rule struct {
	include  bool
	dirOnly  bool
	base     bool     // the pattern has no slash, and matches the last element of a path
	segments []string // between slashes
}

// ParsePatterns reads patterns, one in each line. Empty lines and lines that begin with # count for nothing.
func ParsePatterns(lines ...string) (*Patterns, error) {
	p := &Patterns{}
	for _, line := range lines {
		if strings.ContainsAny(line, "\n\x00") {
			return nil, fmt.Errorf("the pattern %q has a line feed or a NUL inside", line)
		}
		if r, ok := parseRule(line); ok {
			p.rules = append(p.rules, r)
		}
	}
	return p, nil
}

// CheckPattern returns an error that names the pattern and the remedy if line is malformed, such as by a [ without ], or names no entry. ParsePatterns accepts such a line, as git
// does, unless it has a line feed or NUL; the pattern then matches no entry.
func CheckPattern(line string) error {
	if _, err := ParsePatterns(line); err != nil {
		return err
	}
	_, rest := cutRule(line)
	if strings.Trim(rest, "/") == "" {
		return fmt.Errorf("the pattern %q names no entry; write a name, or a path below the directory", line)
	}
	for i := 0; i < len(rest); {
		switch rest[i] {
		case '\\':
			if i+1 == len(rest) {
				return fmt.Errorf(`the pattern %q ends in a backslash, and so matches nothing; write \\ for the character`, line)
			}
			i += 2
		case '[':
			end, _ := matchBracket(rest[i:], 0)
			if end < 0 {
				return fmt.Errorf(`the pattern %q has a [ without its ], or with a class of characters that does not exist, and so matches nothing; write \[ for the character`, line)
			}
			i += end
		default:
			i++
		}
	}
	for _, s := range splitPattern(strings.TrimPrefix(rest, "/")) {
		if s == "" || s == "." || s == ".." {
			return fmt.Errorf("the pattern %q has an empty element, a dot or two dots between its slashes, and so matches nothing; write the path below the directory, without them", line)
		}
	}
	return nil
}

func parseRule(line string) (r rule, ok bool) {
	r, line = cutRule(line)
	if line == "" {
		return r, false
	}
	if !strings.Contains(line, "/") {
		r.base, r.segments = true, []string{line}
		return r, true
	}
	r.segments = splitPattern(strings.TrimPrefix(line, "/"))
	return r, true
}

// cutRule cuts the marks off a line: the exclamation mark at its beginning, the slash at its end. The rest is empty if the line is no pattern.
func cutRule(line string) (r rule, rest string) {
	if strings.HasPrefix(line, "#") {
		return r, ""
	}
	line = trimSpaces(line)
	if rest, negated := strings.CutPrefix(line, "!"); negated {
		r.include, line = true, rest
	}
	if rest, dir := strings.CutSuffix(line, "/"); dir {
		r.dirOnly, line = true, rest
	}
	return r, line
}

// splitPattern splits a pattern at its slashes, but for those in bracket expressions. A backslash before a slash counts for nothing, and two stars or more are two.
func splitPattern(pattern string) (segments []string) {
	var b strings.Builder
	flush := func() {
		s := b.String()
		if len(s) > 2 && strings.Trim(s, "*") == "" {
			s = "**"
		}
		segments = append(segments, s)
		b.Reset()
	}
	for i := 0; i < len(pattern); {
		n := 1
		switch {
		case pattern[i] == '/':
			flush()
			i++
			continue
		case strings.HasPrefix(pattern[i:], `\/`):
			i++
			continue
		case pattern[i] == '\\' && i+1 < len(pattern):
			n = 2
		case pattern[i] == '[':
			if end, _ := matchBracket(pattern[i:], 0); end > 0 {
				n = end
			}
		}
		b.WriteString(pattern[i : i+n])
		i += n
	}
	flush()
	return segments
}

// trimSpaces removes the spaces at the end of a line that no backslash protects.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '\\' && i+1 < len(line):
			i++
			end = i + 1
		case line[i] != ' ':
			end = i + 1
		}
	}
	return line[:end]
}

// Excludes reports whether the entry at a path with slashes, a directory or not, stays behind. Its directory is not looked at: the
// caller does not ask about entries of a directory that is excluded.
func (p *Patterns) Excludes(at string, dir bool) bool {
	if p == nil {
		return false
	}
	for i := len(p.rules) - 1; i >= 0; i-- {
		if r := &p.rules[i]; r.matches(at, dir) {
			return !r.include
		}
	}
	return false
}

func (r *rule) matches(at string, dir bool) bool {
	switch {
	case r.dirOnly && !dir:
		return false
	case r.base:
		return matchElement(r.segments[0], path.Base(at))
	}
	return matchPath(r.segments, strings.Split(at, "/"))
}

// matchPath compares the elements of a path with those of a pattern. Two stars stand for any number of elements; at the end of the
// pattern, for at least one. It visits each pair of a segment and an element once at most, because a pattern may have many stars.
func matchPath(segments, elements []string) bool {
	reach := make([]bool, len(elements)+1) // reach[n]: the segments so far match the first n elements
	reach[0] = true
	for s, segment := range segments {
		next := make([]bool, len(elements)+1)
		if segment == "**" {
			reached := false
			for n := range reach {
				if s == len(segments)-1 { // at least one element
					next[n] = reached
				}
				reached = reached || reach[n]
				if s < len(segments)-1 {
					next[n] = reached
				}
			}
		} else {
			for n, element := range elements {
				next[n+1] = reach[n] && matchElement(segment, element)
			}
		}
		reach = next
	}
	return reach[len(elements)]
}

// matchElement compares a name with a pattern of *, ?, bracket expressions and backslashes. A pattern that is malformed matches nothing.
func matchElement(pattern, name string) bool {
	star, from := -1, 0 // the pattern behind the last star, and the name from which it is tried next
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) {
			switch pattern[p] {
			case '*':
				for p < len(pattern) && pattern[p] == '*' {
					p++
				}
				star, from = p, n
				continue
			case '?':
				p, n = p+1, n+1
				continue
			case '[':
				if end, ok := matchBracket(pattern[p:], name[n]); end < 0 {
					return false
				} else if ok {
					p, n = p+end, n+1
					continue
				}
			default:
				q := p
				if pattern[q] == '\\' {
					if q++; q == len(pattern) {
						return false
					}
				}
				if pattern[q] == name[n] {
					p, n = q+1, n+1
					continue
				}
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchBracket compares a byte with the bracket expression at the beginning of a pattern, and returns the length of that; -1: it has no end.
func matchBracket(pattern string, c byte) (length int, ok bool) {
	i := 1
	negated := false
	if i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^') {
		negated = true
		i++
	}
	for first := true; ; first = false {
		if i >= len(pattern) {
			return -1, false
		}
		if pattern[i] == ']' && !first {
			break
		}
		if class, n := bracketClass(pattern[i:]); n > 0 {
			if class == nil {
				return -1, false
			}
			ok = ok || class(c)
			i += n
			continue
		}
		low, n := bracketByte(pattern[i:])
		if n == 0 {
			return -1, false
		}
		i += n
		high := low
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			if high, n = bracketByte(pattern[i+1:]); n == 0 {
				return -1, false
			}
			i += 1 + n
		}
		ok = ok || c == low || low <= c && c <= high // as git: a range that descends has its first byte
	}
	return i + 1, ok != negated
}

// bracketByte returns the byte at the beginning of s, and its length with a backslash; 0: there is none.
func bracketByte(s string) (byte, int) {
	if s[0] != '\\' {
		return s[0], 1
	}
	if len(s) < 2 {
		return 0, 0
	}
	return s[1], 2
}

// bracketClass returns the class such as [:alpha:] at the beginning of s and its length; 0: there is none. The function is nil for a
// class that does not exist.
func bracketClass(s string) (func(byte) bool, int) {
	if !strings.HasPrefix(s, "[:") {
		return nil, 0
	}
	end := strings.Index(s, ":]")
	if end < 2 {
		return nil, 0
	}
	return classes[s[2:end]], end + 2
}

var classes = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isDigit(c) || isLower(c) || isUpper(c) },
	"alpha":  func(c byte) bool { return isLower(c) || isUpper(c) },
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  func(c byte) bool { return c > ' ' && c < 0x7f },
	"lower":  isLower,
	"print":  func(c byte) bool { return c >= ' ' && c < 0x7f },
	"punct":  func(c byte) bool { return c > ' ' && c < 0x7f && !isDigit(c) && !isLower(c) && !isUpper(c) },
	"space":  func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' },
	"upper":  isUpper,
	"xdigit": func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
