package proxy

// blanks are what the next grant needs, made in advance: they are large, and
// memory that was given back long ago is slow. They belong to the front loop.
type blanks struct {
	lease        *Lease
	conversation *conversation
}

func (b *blanks) takeLease() *Lease { return takeBlank(&b.lease) }

func (b *blanks) takeConversation() *conversation { return takeBlank(&b.conversation) }

// takeBlank returns a new T: that which is ready, if there is one.
func takeBlank[T any](ready **T) *T {
	if t := *ready; t != nil {
		*ready = nil
		return t
	}
	return new(T)
}

// refill makes what is missing.
func (b *blanks) refill() {
	if b.lease == nil {
		b.lease = new(Lease)
	}
	if b.conversation == nil {
		b.conversation = new(conversation)
	}
}
