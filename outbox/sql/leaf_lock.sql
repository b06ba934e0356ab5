-- Lock one leaf of the ring, or fail at once if anybody reads or writes it: nobody is to wait for the pruning.
-- The leaf's number replaces {leaf}.
lock table postroad.outbox_{leaf} in access exclusive mode nowait
