// One value of every type that the Go package codec/cereal has bytes for. each() goes through all of them; values.cpp
// prints their bytes, thallium_peer.cpp sends them to and fro. The Go tests have the same values under the same names.

#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <deque>
#include <forward_list>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <thallium.hpp>
#include <thallium/serialization/stl/array.hpp>
#include <thallium/serialization/stl/complex.hpp>
#include <thallium/serialization/stl/deque.hpp>
#include <thallium/serialization/stl/forward_list.hpp>
#include <thallium/serialization/stl/list.hpp>
#include <thallium/serialization/stl/map.hpp>
#include <thallium/serialization/stl/multimap.hpp>
#include <thallium/serialization/stl/multiset.hpp>
#include <thallium/serialization/stl/pair.hpp>
#include <thallium/serialization/stl/set.hpp>
#include <thallium/serialization/stl/string.hpp>
#include <thallium/serialization/stl/tuple.hpp>
#include <thallium/serialization/stl/unordered_map.hpp>
#include <thallium/serialization/stl/unordered_multimap.hpp>
#include <thallium/serialization/stl/unordered_multiset.hpp>
#include <thallium/serialization/stl/unordered_set.hpp>
#include <thallium/serialization/stl/vector.hpp>
#include <cereal/types/bitset.hpp>
#include <cereal/types/chrono.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/queue.hpp>
#include <cereal/types/variant.hpp>

enum plain_enum { zero, one, minus = -7 };
enum class small_enum : std::uint8_t { red, green = 200 };

// A class that is written by its serialize method.
struct point {
	double x = 0, y = 0, z = 0;
	template <typename A> void serialize(A &ar) { ar(x, y, z); }
};

// A class that is written by save and load, which do not write its members in their order.
struct saved {
	std::string name;
	std::int32_t number = 0;
	template <typename A> void save(A &ar) const { ar(number); ar(name); }
	template <typename A> void load(A &ar) { ar(number); ar(name); }
};

// A class without anything to write.
struct empty {
	template <typename A> void serialize(A &) {}
};

struct around {
	std::int32_t before = 0;
	empty nothing;
	std::int32_t after = 0;
	template <typename A> void serialize(A &ar) { ar(before, nothing, after); }
};

// A class with a base.
struct derived : point {
	std::string name;
	template <typename A> void serialize(A &ar) { ar(cereal::base_class<point>(this), name); }
};

// A class with a version.
struct versioned {
	std::int16_t value = 0;
	template <typename A> void serialize(A &ar, std::uint32_t const) { ar(value); }
};
CEREAL_CLASS_VERSION(versioned, 3)

// A C array, and a struct that is written as it lies in memory.
struct raw {
	std::uint16_t numbers[3] = {};
	struct {
		std::uint8_t a;
		std::uint8_t b;
	} pair = {};
	template <typename A> void serialize(A &ar) { ar(numbers, cereal::binary_data(&pair, sizeof pair)); }
};

// A binary tree.
struct tree {
	std::int32_t value = 0;
	std::unique_ptr<tree> left, right;
	template <typename A> void serialize(A &ar) { ar(value, left, right); }
};

// A ring: the last node leads to the first.
struct ring {
	std::string name;
	std::shared_ptr<ring> next;
	template <typename A> void serialize(A &ar) { ar(name, next); }
};

// Children with a weak pointer to their parent.
struct child;
struct parent {
	std::vector<std::shared_ptr<child>> children;
	template <typename A> void serialize(A &ar) { ar(children); }
};
struct child {
	std::int8_t age = 0;
	std::weak_ptr<parent> of;
	template <typename A> void serialize(A &ar) { ar(age, of); }
};

inline std::shared_ptr<ring> make_ring() {
	auto a = std::make_shared<ring>(), b = std::make_shared<ring>();
	a->name = "a", b->name = "b";
	a->next = b, b->next = a;
	return a;
}

inline std::shared_ptr<parent> make_family() {
	auto p = std::make_shared<parent>();
	for (std::int8_t age : {7, 3}) {
		auto c = std::make_shared<child>();
		c->age = age, c->of = p;
		p->children.push_back(c);
	}
	return p;
}

inline std::unique_ptr<tree> leaf(std::int32_t value) {
	auto t = std::make_unique<tree>();
	t->value = value;
	return t;
}

// each calls f with the name and the value of each, by reference.
template <typename F> void each(F &&f) {
	auto v = [&](char const *name, auto value) { f(name, value); };

	v("bool/true", true);
	v("bool/false", false);
	v("char", 'Z');
	v("int8", std::int8_t(-1));
	v("uint8", std::uint8_t(0xa5));
	v("int16", std::int16_t(-300));
	v("uint16", std::uint16_t(0x1234));
	v("int32", std::int32_t(-70000));
	v("uint32", std::uint32_t(0x33445566));
	v("int64", std::int64_t(-5000000000));
	v("uint64", std::uint64_t(0x1122334455667788));
	v("long", long(-2));
	v("size_t", std::size_t(1) << 40);
	v("float", 2.5f);
	v("float/nan", std::numeric_limits<float>::quiet_NaN());
	v("double", 1.5);
	v("double/negative zero", -0.0);
	v("enum", minus);
	v("enum class", small_enum::green);
	v("complex<float>", std::complex<float>(1.5f, -2));
	v("complex<double>", std::complex<double>(0.25, 3));

	v("string", std::string("str"));
	v("string/empty", std::string());
	v("string/utf8", std::string("gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac"));
	v("string/nul", std::string("a\0b", 3));
	v("u16string", std::u16string(u"\u00fcx"));
	v("wstring", std::wstring(L"wx"));

	v("vector<int32>", std::vector<std::int32_t>{1, 2, 3});
	v("vector<int32>/empty", std::vector<std::int32_t>{});
	v("vector<char>", std::vector<char>{'a', 'b'});
	v("vector<double>", std::vector<double>{1.5, -2});
	v("vector<bool>", std::vector<bool>{true, false, true});
	v("vector<string>", std::vector<std::string>{"a", "bc", ""});
	v("vector<vector<int16>>", std::vector<std::vector<std::int16_t>>{{1}, {}, {2, 3}});
	v("vector<complex>", std::vector<std::complex<float>>{{1, 2}, {3, 4}});
	v("vector<point>", std::vector<point>{{1, 2, 3}, {4, 5, 6}});
	v("array<int32>", std::array<std::int32_t, 3>{4, 5, 6});
	v("array<string>", std::array<std::string, 2>{"x", "yz"});
	v("list", std::list<std::int32_t>{9, 8});
	v("deque", std::deque<std::string>{"front", "back"});
	v("forward_list", std::forward_list<std::uint8_t>{3, 2, 1});
	v("queue", std::queue<std::int16_t>(std::deque<std::int16_t>{1, 2}));

	v("set<int32>", std::set<std::int32_t>{3, -1, 2});
	v("set<string>", std::set<std::string>{"b", "a", "\xc3\xbc"});
	v("multiset", std::multiset<std::int32_t>{2, 1, 2});
	v("unordered_set", std::unordered_set<std::int32_t>{7});
	v("unordered_multiset", std::unordered_multiset<std::int32_t>{7, 7});
	v("map<string,int32>", std::map<std::string, std::int32_t>{{"two", 2}, {"one", 1}});
	v("map<int32,vector<string>>", std::map<std::int32_t, std::vector<std::string>>{{5, {"five"}}, {-5, {}}});
	v("map<pair,bool>", std::map<std::pair<std::int32_t, std::string>, bool>{{{1, "b"}, true}, {{1, "a"}, false}, {{0, "z"}, true}});
	v("map<double,uint8>", std::map<double, std::uint8_t>{{1.5, 1}, {-2, 2}, {0, 3}});
	v("map/empty", std::map<std::string, std::string>{});
	v("multimap", std::multimap<std::int32_t, std::string>{{1, "a"}, {2, "b"}}); // equal keys would come back in reverse order
	v("unordered_map", std::unordered_map<std::string, double>{{"pi", 3.25}});
	v("unordered_multimap", std::unordered_multimap<std::uint8_t, std::uint8_t>{{1, 2}, {1, 2}});

	v("pair", std::pair<std::int32_t, std::string>(1, "one"));
	v("tuple", std::tuple<std::int8_t, std::string, double>(-1, "t", 0.5));
	v("tuple/empty", std::tuple<>());
	v("optional/none", std::optional<std::int32_t>());
	v("optional/some", std::optional<std::int32_t>(42));
	v("vector<optional<string>>", std::vector<std::optional<std::string>>{{"s"}, {}});
	v("variant/0", std::variant<std::int32_t, std::string>(7));
	v("variant/1", std::variant<std::int32_t, std::string>("seven"));
	v("variant/monostate", std::variant<std::monostate, std::uint8_t>());
	v("nanoseconds", std::chrono::nanoseconds(1500));
	v("bitset", std::bitset<10>(0x205));

	std::unique_ptr<std::int32_t> none;
	f("unique_ptr/null", none);
	auto some = std::make_unique<std::int32_t>(5);
	f("unique_ptr/some", some);
	auto root = leaf(1);
	root->left = leaf(2), root->left->right = leaf(3);
	f("tree", root);

	v("shared_ptr/null", std::shared_ptr<std::int32_t>());
	v("shared_ptr/some", std::make_shared<std::int32_t>(5));
	auto a = std::make_shared<std::string>("a"), b = std::make_shared<std::string>("b");
	v("vector<shared_ptr>", std::vector<std::shared_ptr<std::string>>{a, b, a, nullptr, b});
	v("pair<shared_ptr>", std::make_pair(a, std::map<std::int8_t, std::shared_ptr<std::string>>{{1, b}, {2, a}}));
	auto loop = make_ring();
	f("ring", loop);
	loop->next->next = nullptr; // so that it is freed
	auto family = make_family();
	f("weak_ptr", family);

	v("class", point{1, -2, 0.5});
	v("class/save", saved{"n", 4});
	v("class/empty", around{1, {}, 2});
	derived d;
	d.x = 1, d.name = "d";
	v("class/base", d);
	v("class/version", std::vector<versioned>{{1}, {2}});
	v("class/versions", std::make_pair(versioned{1}, versioned{2}));
	v("class/raw", raw{{1, 2, 3}, {4, 5}});
	v("nested", std::vector<std::map<std::string, std::vector<std::pair<std::int8_t, std::optional<std::string>>>>>{
		{{"k", {{1, "v"}, {2, std::nullopt}}}, {"", {}}}, {}});
	v("bulk/null", thallium::bulk());
}

// bytes_of returns what a message has for a value.
template <typename T> std::string bytes_of(thallium::engine const &e, T &value) {
	std::vector<char> room(1 << 16);
	hg_proc_t proc;
	margo_instance_id mid = e.get_margo_instance();
	if (hg_proc_create_set(margo_get_class(mid), room.data(), room.size(), HG_ENCODE, HG_NOHASH, &proc) != HG_SUCCESS)
		throw std::runtime_error("hg_proc_create_set");
	std::tuple<> context;
	std::tuple<T &> arguments(value); // as a call has them
	thallium::proc_object_encode(proc, arguments, mid, context);
	std::string bytes(room.data(), hg_proc_get_size_used(proc));
	hg_proc_free(proc);
	return bytes;
}

inline std::string hex(std::string const &bytes) {
	static char const digits[] = "0123456789abcdef";
	std::string text;
	for (unsigned char c : bytes)
		text += {digits[c >> 4], digits[c & 15]};
	return text;
}
