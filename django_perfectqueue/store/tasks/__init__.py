"""What is done with tasks: submit, settle, steer, revise, park."""
