package cinnabar

import (
	"regexp"

	"cinnabar/codec/cereal"
)

// cppTypes are names that C++ gives its own types, Thallium's, and templates of them, as get_type_name of Thallium
// writes them: those of a tuple's elements, separated by commas, or void.
var cppTypes = regexp.MustCompile(`^(void|((unsigned |signed )?(bool|char|short|int|long|float|double)|std::|thallium::)[A-Za-z0-9_:<>,&*()\[\] ]*)$`)

// maxTypeNames bounds the names that are looked at.
const maxTypeNames = 4096

// typeNames returns the names that a message of a Thallium program which was built with THALLIUM_DEBUG_RPC_TYPES begins
// with, a std::string in front of the value. Nothing else tells such a message: what is read from it would be wrong.
// Names of a program's own types look like any other text and are not found out.
func typeNames(b []byte) (names string, ok bool) {
	names, _, err := cereal.DecodeString(b[:min(len(b), maxTypeNames)])
	if err != nil || !cppTypes.MatchString(names) {
		return "", false
	}
	return names, true
}
