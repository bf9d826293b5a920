package exercise

import (
	"testing"

	"cinnabar/examples/course/internal/check"
)

func TestExercise(t *testing.T) { check.Run(t, check.Patch(Patch)) }
