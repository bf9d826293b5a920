package sched

// heap is a binary heap of items that know their places in it, so that any of them can be moved or removed in logarithmic
// time.
type heap[T any] struct {
	items  []T
	before func(a, b T) bool // reports whether a comes out earlier than b
	place  func(T) *int      // where an item keeps its index, which is -1 outside the heap
}

// first returns the item that comes out first, and the zero T if there is none.
func (h *heap[T]) first() (x T) {
	if len(h.items) > 0 {
		x = h.items[0]
	}
	return x
}

func (h *heap[T]) push(x T) {
	*h.place(x) = len(h.items)
	h.items = append(h.items, x)
	h.up(len(h.items) - 1)
}

// remove takes x out. An item that is not in the heap stays so.
func (h *heap[T]) remove(x T) {
	i := *h.place(x)
	if i < 0 {
		return
	}
	last := len(h.items) - 1
	h.swap(i, last)
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	*h.place(x) = -1
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// fix moves x to its new place after its order has changed. An item that is not in the heap stays so.
func (h *heap[T]) fix(x T) {
	if i := *h.place(x); i >= 0 {
		h.up(i)
		h.down(*h.place(x))
	}
}

func (h *heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(h.items[i], h.items[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *heap[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.items); child++ {
			if h.before(h.items[child], h.items[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h *heap[T]) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.place(h.items[i]), *h.place(h.items[j]) = i, j
}
