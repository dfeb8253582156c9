package sqlite

import "slices"

// recent holds the encoded records that a transaction has read and written of late: what is read to be changed is read
// once. The nil recent holds nothing.
type recent struct {
	records map[objectKey]recentRecord
}

type recentRecord struct {
	id   int64
	data []byte
}

// maxRecentRecords bounds what a transaction holds.
const maxRecentRecords = 256

// get answers a copy, since what is decoded shares its memory; nil when the record is not held.
func (r *recent) get(kind, name string) (id int64, data []byte) {
	if r == nil {
		return 0, nil
	}
	found := r.records[objectKey{kind, name}]
	return found.id, slices.Clone(found.data)
}

// put takes a copy of data.
func (r *recent) put(kind, name string, id int64, data []byte) {
	if r == nil {
		return
	}
	if r.records == nil || len(r.records) >= maxRecentRecords {
		r.records = map[objectKey]recentRecord{}
	}
	r.records[objectKey{kind, name}] = recentRecord{id, slices.Clone(data)}
}

func (r *recent) drop(kind, name string) {
	if r != nil {
		delete(r.records, objectKey{kind, name})
	}
}
