from django.db import models


class Row(models.Model):
    owner = models.CharField(max_length=63)

    def __str__(self):
        return self.owner
