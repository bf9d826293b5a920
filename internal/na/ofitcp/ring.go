package ofitcp

// ring is a queue that grows and keeps its room. The zero ring is empty.
type ring[T any] struct {
	buf  []T // a power of two
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

// at returns the i-th element from the front.
func (r *ring[T]) at(i int) *T { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		r.grow()
	}
	*r.at(r.n) = v
	r.n++
}

func (r *ring[T]) grow() {
	buf := make([]T, max(8, 2*len(r.buf)))
	for i := range r.n {
		buf[i] = *r.at(i)
	}
	r.buf, r.head = buf, 0
}

// pop removes the front. A ring that was very large and is empty gives its room back.
func (r *ring[T]) pop() T {
	var zero T
	p := r.at(0)
	v := *p
	*p = zero
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	if r.n == 0 && len(r.buf) > ringKeep {
		r.buf, r.head = nil, 0
	}
	return v
}

// ringKeep is how many elements an empty ring keeps room for.
const ringKeep = 1024

// remove takes out the i-th element from the front.
func (r *ring[T]) remove(i int) {
	var zero T
	for ; i < r.n-1; i++ {
		*r.at(i) = *r.at(i + 1)
	}
	*r.at(r.n - 1) = zero
	r.n--
}
