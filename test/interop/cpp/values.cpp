// Prints the bytes that Thallium's archive has for the values of values.hpp: lines of a hexadecimal string, "-" for
// none, and a name.

#include <iostream>

#include "values.hpp"

int main() {
	thallium::engine e("tcp", THALLIUM_CLIENT_MODE);
	std::cout << "# Thallium 0.16, cereal 1.3.2, x86-64: the bytes of values.hpp" << std::endl;
	each([&](char const *name, auto &value) {
		std::string digits = hex(bytes_of(e, value));
		std::cout << (digits.empty() ? "-" : digits) << ' ' << name << std::endl;
	});
	e.finalize();
}
