package storetest

import "testing"

func testCrashes(t *testing.T, b Backend) {}
