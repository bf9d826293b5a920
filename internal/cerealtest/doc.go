// Package cerealtest has values of every type that codec/cereal writes, with the bytes that a C++ program on Thallium has
// for them. It is for the tests of the codec and of the calls between both languages.
package cerealtest
