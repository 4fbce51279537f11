from django_perfectqueue.compat import task


@task
def add(a, b):
    return a + b
