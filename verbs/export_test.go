package verbs

// DefaultSpin is defaultSpin for the tests.
const DefaultSpin = defaultSpin
